"""The least that a process can do: connect, read one change, say so."""

from __future__ import annotations

import time

from bench.programs.talk import say, task
from bench.source import HEADER_BYTES, ROW_TAGS, start_replication


def main() -> None:
    """Read until the first row comes."""
    wanted = task()
    connection = start_replication(wanted["dsn"], wanted["slot"], wanted["publication"])
    while True:
        size, message = connection.get_copy_data(0)
        if size < 0:
            raise ConnectionError("the stream ended before a change came")
        if message[0] == ord("w") and message[HEADER_BYTES] in ROW_TAGS:
            break
    say("read", at=time.monotonic())
    connection.finish()


if __name__ == "__main__":
    main()
