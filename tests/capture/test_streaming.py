"""The loop that reads a connection, under way and at the end of a stream."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
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
from tailrace.postgres.frames import Frames
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.wire import PlainWire
from tests.capture.wal import START, Wal, insert

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


class _Recorded:
    """Takes segments as a log would, and notes how many transactions each held."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def append(self, frames: Frames) -> None:
        self.counts.append(len(frames.transactions.end_lsn))


def _sent(wal: Wal, count: int) -> bytes:
    """So many commits, as they come over the wire."""
    messages = [each for number in range(count) for each in wal.commit(insert(number)).messages()]
    return b"".join(b"d" + struct.pack(">I", 4 + len(each)) + each for each in messages)


def _streaming(end: socket.socket, writing: WritingThread, stop: threading.Event) -> Streaming:
    return Streaming(
        cast(ReplicationConnection, Connected(end)),
        Core(START, limits=Limits(), now=time.monotonic()),
        writing,
        metrics=Metrics("main"),
        should_stop=stop.is_set,
    )


def _over_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        return listening.accept()[0], ours


@pytest.mark.parametrize("ends", [socket.socketpair, _over_tcp])
def test_what_a_steady_sender_sends_is_gathered_and_nothing_waits_for_its_end(
    ends: Callable[[], tuple[socket.socket, socket.socket]],
) -> None:
    """Two thousand commits, each sent when the last one has been read or a moment later."""
    recorded, wal, stop = _Recorded(), Wal(), threading.Event()
    writing = WritingThread(cast(TranslatingWriter, recorded))
    server, ours = ends()
    with server, ours:
        running = threading.Thread(target=_streaming(ours, writing, stop).run)
        running.start()
        for _ in range(2000):
            server.sendall(_sent(wal, 1))
        while sum(recorded.counts) < 2000 and running.is_alive():
            time.sleep(0.01)
        stop.set()
        running.join()
    assert writing.close(10.0) is None
    assert sum(recorded.counts) == 2000
    assert len(recorded.counts) < 200


class _Held(_Recorded):
    """Is at work on its first segment until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def append(self, frames: Frames) -> None:
        self.has_begun.set()
        self.may_end.wait(10.0)
        super().append(frames)


def test_f086_an_error_behind_which_the_connection_ends_is_told_as_it_came() -> None:
    """Also while the writer is busy, when what comes is gathered before it is looked at."""
    held, wal = _Held(), Wal()
    writing = WritingThread(cast(TranslatingWriter, held))
    server, ours = socket.socketpair()
    fields = b"SFATAL\0C57P01\0Mterminating connection\0\0"
    error = b"E" + struct.pack(">I", 4 + len(fields)) + fields

    def send() -> None:
        server.sendall(_sent(wal, 1))
        held.has_begun.wait(10.0)
        server.sendall(_sent(wal, 1) + error)
        server.close()

    with server, ours:
        sending = threading.Thread(target=send)
        sending.start()
        with pytest.raises(psycopg.errors.AdminShutdown, match="terminating connection"):
            _streaming(ours, writing, threading.Event()).run()
        sending.join()
    held.may_end.set()
    assert writing.close(10.0) is None
