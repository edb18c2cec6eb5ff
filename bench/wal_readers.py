"""Readers of the WAL beside a writer: the real daemon, one that throws everything away, and none.

And, in place of a reader, a process that only spins: what a writer loses beside it, it loses to the
machine, whoever keeps the other core busy.

All of them are there all the time, but stopped, with the walsender that serves them, as long as
they are not wanted: a stopped process takes nothing. Each side has a table of its own, so that no
reader has work left from what was written beside another one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from bench.child import Child
from bench.source import Source
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection, connect

NONE: Final = "no capture"
WAL: Final = "wal"
DISCARD: Final = "a reader that throws away"
SPIN: Final = "a process that only spins"

_POLL_S: Final = 0.02
_SETTLE_S: Final = 0.1
"""From what was sent last until it is durable, if nothing more comes."""

_TABLES: Final = {
    NONE: "bench.unread",
    WAL: "public.captured",
    DISCARD: "bench.discarded",
    SPIN: "bench.spun",
}
_DISCARDED: Final = "bench_discarded"
_PREPARE: Final = """
DROP PUBLICATION IF EXISTS bench_discarded;
DROP TABLE IF EXISTS bench.unread, public.captured, bench.discarded, bench.spun;
CREATE TABLE bench.unread (LIKE public.orders INCLUDING ALL);
CREATE TABLE public.captured (LIKE public.orders INCLUDING ALL);
CREATE TABLE bench.discarded (LIKE public.orders INCLUDING ALL);
CREATE TABLE bench.spun (LIKE public.orders INCLUDING ALL);
CREATE PUBLICATION bench_discarded FOR TABLE bench.discarded;
"""
"""None of them has triggers: one that is switched off still costs its table's rows something."""


class WalReaders:
    """The sides; a reader is a slot and the process that reads it."""

    names = (NONE, WAL, DISCARD, SPIN)

    def __init__(
        self, conn: Connection, readers: Mapping[str, tuple[str, int]], spinning_pid: int
    ) -> None:
        self._conn = conn
        self._readers = readers
        self._spinning_pid = spinning_pid

    @contextmanager
    def beside(self, name: str) -> Iterator[str]:
        """See `Sides.beside`."""
        self._catch_up()
        stopped = [
            pid
            for reader, (slot, process) in self._readers.items()
            if reader != name
            for pid in (process, self._sender(slot))
        ]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            if name == SPIN:
                os.kill(self._spinning_pid, signal.SIGCONT)
            yield _TABLES[name]
        finally:
            os.kill(self._spinning_pid, signal.SIGSTOP)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def _sender(self, slot: str) -> int:
        row = self._conn.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot,)
        ).fetchone()
        assert row is not None and row[0] is not None, f"nobody reads {slot}"
        return int(row[0])

    def _catch_up(self) -> None:
        behind = "SELECT count(*) FROM pg_stat_replication WHERE sent_lsn < %s::pg_lsn"
        until = str(insert_position(self._conn))
        while self._conn.execute(behind, (until,)).fetchone() != (0,):
            time.sleep(_POLL_S)
        time.sleep(_SETTLE_S)


@contextmanager
def wal_readers(source: Source, transport: str) -> Iterator[WalReaders]:
    """Both readers, on a log and slots that begin now: nobody has to catch up with what was."""
    with connect(source.database.dsn) as conn:
        conn.execute(_PREPARE)
        source.begin_anew()
        with (
            source.slot() as slot,
            _discard(source, slot, transport) as discard,
            source.capture(transport, None) as capture,
            _spinning() as spinning_pid,
        ):
            for child in (discard, capture):
                child.event("streaming")
            readers = {WAL: (source.names.slot, capture.pid), DISCARD: (slot, discard.pid)}
            yield WalReaders(conn, readers, spinning_pid)


def _discard(source: Source, slot: str, transport: str) -> Child:
    address = source.database.address(transport)
    task = {"dsn": address, "slot": slot, "publication": _DISCARDED}
    return Child("discard", task, log=source.directory / "discard.log")


@contextmanager
def _spinning() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            yield process.pid
        finally:
            process.kill()
