"""Reads the stream of a slot and throws it away: the least that anybody can take from a writer.

The socket is read twice in a millisecond, and nothing in it is looked at.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final

from bench.programs.talk import say, stop_with_parent, task
from bench.source import start_replication

_PAUSE_S: Final = 0.0005
_PAUSES_PER_STATUS: Final = 1000
_BUFFER_BYTES: Final = 1 << 20
_STATUS: Final = struct.Struct(">cIcQQQqB")


def main() -> None:
    """Run until told to stop."""
    wanted = task()
    stop = stop_with_parent()
    connection = start_replication(wanted["dsn"], wanted["slot"], wanted["publication"])
    say("streaming")
    buffer = bytearray(_BUFFER_BYTES)
    pauses = 0
    with socket.socket(fileno=os.dup(connection.socket)) as stream:
        stream.setblocking(False)
        while not stop.wait(_PAUSE_S):
            with suppress(BlockingIOError):
                stream.recv_into(buffer)
            pauses += 1
            if pauses % _PAUSES_PER_STATUS == 0:
                # Nothing is acknowledged: the slot goes with the run.
                stream.send(_STATUS.pack(b"d", _STATUS.size - 1, b"r", 0, 0, 0, 0, 0))
    connection.finish()


if __name__ == "__main__":
    main()
