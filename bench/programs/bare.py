"""The limit: the same client library reading the same frames from the slot, thrown away at once."""

from __future__ import annotations

import select
import time

from bench.programs.talk import peak_memory_mb, say, task
from bench.source import start_replication

_WAKE_S = 60.0


def main() -> None:
    """Read up to a position."""
    wanted = task()
    connection = start_replication(wanted["dsn"], wanted["slot"], wanted["publication"])
    began, cpu_began = time.monotonic(), time.process_time()
    say("streaming", at=began)
    end: int = wanted["end"]
    get, consume = connection.get_copy_data, connection.consume_input
    poller = select.poll()
    poller.register(connection.socket, select.POLLIN)
    position = 0
    last: bytes | memoryview = bytes(9)
    while position < end:
        consume()
        while True:
            size, message = get(1)
            if size <= 0:
                break
            last = message
        if size < 0:
            raise ConnectionError("the stream ended before the backlog did")
        position = int.from_bytes(last[1:9], "big")
        if position < end:
            poller.poll(_WAKE_S * 1000)
    finished = time.monotonic()
    say(
        "done",
        at=finished,
        seconds=finished - began,
        cpu_s=time.process_time() - cpu_began,
        memory_mb=peak_memory_mb(),
    )
    connection.finish()


if __name__ == "__main__":
    main()
