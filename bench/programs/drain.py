"""Drains the buffers of a database, again and again, until so many rows are durable in the log.

Says `ready` when the log has begun, and `done` with the moment at which the last segment became
durable.
"""

from __future__ import annotations

import time

from bench.programs.talk import peak_memory_mb, say, stop_with_parent, task
from tailrace.capture.buffers.shapes import BufferShapes, ask_for_base
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.drains.drain import Drainer
from tailrace.capture.leader import describing
from tailrace.log import SourceIdentity, Writer, put_genesis
from tailrace.model import Lsn
from tailrace.postgres.server import read_server
from tailrace.postgres.session import connect
from tailrace.storage import open_store

POLL_S = 0.1


def main() -> None:
    """Run until all is drained, or told to stop."""
    wanted = task()
    dsn, source = wanted["dsn"], wanted["source"]
    store, stop = open_store(wanted["log"]), stop_with_parent()
    with connect(dsn) as conn:
        server = read_server(conn)
        row = conn.execute("SELECT pg_logical_emit_message(true, 'bench', '')::text").fetchone()
        assert row is not None
    identity = SourceIdentity(str(server.system_id), server.timeline)
    note = {"slot": source, "database": server.database, "mode": "drain"}
    tip = put_genesis(store, identity, Lsn.parse(row[0]), writer_id="bench", note=note)
    writer = Writer(store, tip, writer_id="bench", describe=describing(dsn, store))
    translator = Translator(BufferShapes(dsn), want_base=ask_for_base(dsn, store))
    with Drainer(dsn, store, TranslatingWriter(writer, translator), source=source) as drainer:
        say("ready")
        began, cpu_s, count, last_at = time.monotonic(), time.process_time(), 0, 0.0
        while count < wanted["changes"] and not stop.is_set():
            header = drainer.drain(lambda: None)
            if header is None:
                stop.wait(POLL_S)
                continue
            count, last_at = count + header.change_count, time.monotonic()
            drainer.delete(lambda: None)
    say(
        "done",
        at=last_at,
        seconds=last_at - began,
        cpu_s=time.process_time() - cpu_s,
        memory_mb=peak_memory_mb(),
    )


if __name__ == "__main__":
    main()
