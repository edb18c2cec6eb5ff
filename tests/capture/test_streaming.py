"""The loop that reads a connection, at the end of a stream."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import cast

import psycopg
import pytest

from tailrace.capture.actions import Limits
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.core import Core
from tailrace.capture.metrics import Metrics
from tailrace.capture.streaming import Streaming
from tailrace.capture.writing import WritingThread
from tailrace.model import Lsn
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.wire import PlainWire

GIVES_UP = Limits(receive_timeout_s=1.0)
"""On a connection from which nothing comes: that is another error."""
READY = b"Z" + struct.pack(">I", 5) + b"I"


class Connected:
    """What the loop asks of a replication connection, on one end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self.wire = PlainWire(end)

    def fileno(self) -> int:
        return self._end.fileno()

    def send_status(self, *_: object, **__: object) -> None:
        pass


@pytest.fixture
def writing() -> Iterator[WritingThread]:
    """Without a writer: nothing is written here."""
    thread = WritingThread(cast(TranslatingWriter, None))
    yield thread
    thread.close(10.0)


def test_f086_an_error_is_raised_at_once_though_the_server_keeps_the_connection(
    writing: WritingThread,
) -> None:
    """A walsender that fails to decode says so and waits for the next command. If both came in one
    piece, nothing more comes that would wake the loop.
    """
    server, ours = socket.socketpair()
    fields = b"SERROR\0CXX000\0Mcould not map filenumber\0\0"
    with server, ours:
        server.sendall(b"E" + struct.pack(">I", 4 + len(fields)) + fields + READY)
        core = Core(Lsn(1), limits=GIVES_UP, now=time.monotonic())
        streaming = Streaming(
            cast(ReplicationConnection, Connected(ours)),
            core,
            writing,
            metrics=Metrics("main"),
            should_stop=lambda: False,
        )
        with pytest.raises(psycopg.errors.InternalError_, match="could not map filenumber"):
            streaming.run()
