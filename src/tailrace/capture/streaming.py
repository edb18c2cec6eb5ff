"""Drives the core: reads from the connection, hands jobs to the writing thread, sends status.

This thread waits for nothing but its poll: neither for the disk nor for a lock. So status goes out
on time while the writer is busy, and Postgres is never held up by us.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final

from tailrace.capture.actions import Action, Close, SendStatus
from tailrace.capture.core import Core
from tailrace.capture.metrics import Metrics
from tailrace.capture.writing import WritingThread
from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.wire import Wire

READ_BYTES: Final = 1 << 20
STOP_TIMEOUT_S: Final = 5.0
GATHER_S: Final = 0.050
PAUSE_MIN_S: Final = 0.000125
PAUSE_MAX_S: Final = 0.016
PAUSE_BYTES: Final = 256 << 10
"""About so much comes in a pause; a TCP connection holds far more."""

SHALLOW_PAUSE_BYTES: Final = 6 << 10
"""The same for a socket that is full of some two hundred rows, if they are small; of others it is
twice as much.
"""

SMALL_BYTES: Final = 100
METRICS_S: Final = 0.1
_POLL_MAX_S: Final = 0.5
_POLL_MIN_S: Final = 0.001


class Streaming:
    """One connection's stream, from START_REPLICATION until it ends, fails or is stopped."""

    def __init__(
        self,
        connection: ReplicationConnection,
        core: Core,
        writing: WritingThread,
        *,
        metrics: Metrics,
        should_stop: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._core = core
        self._writing = writing
        self._metrics = metrics
        self._should_stop = should_stop
        self._read_bytes = min(READ_BYTES, core.piece_bytes_max)
        self._pause_s = PAUSE_MIN_S
        self._pause_bytes = PAUSE_BYTES
        self._has_more = False
        self._observe_at = 0.0
        self._poll_writing = select.poll()
        self._poll_writing.register(writing.fileno(), select.POLLIN)
        self._poll_both = select.poll()
        self._poll_both.register(writing.fileno(), select.POLLIN)
        self._poll_both.register(connection.fileno(), select.POLLIN)

    def run(self) -> None:
        """Stream until told to stop; then all that is complete is durable and acknowledged."""
        stop_by: float | None = None
        while True:
            now = time.monotonic()
            if stop_by is None and self._should_stop():
                stop_by = now + STOP_TIMEOUT_S
                self._core.stop()
            for action in self._core.poll(now):
                self._carry_out(action)
            if now >= self._observe_at or stop_by is not None:
                self._metrics.observe(self._core)
                self._observe_at = now + METRICS_S
            if stop_by is not None and (self._core.is_at_rest or now > stop_by):
                self._carry_out(self._core.status(now))
                return
            self._wait(now)

    def _wait(self, now: float) -> None:
        """Sleep until there is something to do, then take it in."""
        timeout_s = min(self._core.wake_at(now) - now, _POLL_MAX_S)
        is_reading = self._core.wants_input
        poller = self._poll_both if is_reading else self._poll_writing
        # Messages that libpq has already read do not make the socket readable.
        ready = poller.poll(0 if is_reading and self._has_more else timeout_s * 1000)
        files = {file for file, _ in ready}
        if self._writing.fileno() in files:
            self._take_result()
        if is_reading and (self._has_more or self._connection.fileno() in files):
            self._read()
        elif is_reading:
            self._core.drained(time.monotonic())

    def _take_result(self) -> None:
        header = self._writing.take_result()
        failpoint("stream.before_stored")
        self._core.stored(time.monotonic())
        if header is not None:
            self._metrics.sealed(header)

    def _read(self) -> None:
        wire, began = self._connection.wire, time.monotonic()
        is_all = wire.receive(self._read_bytes)
        if is_all and wire.pending_bytes and self._core.is_collecting(began):
            is_all = self._gather(wire)
        messages = wire.take()
        # A sender that has reported an error waits for a command, and sends no more.
        self._has_more = not is_all or wire.has_ended
        if len(messages):
            if wire.is_shallow:
                is_small = messages.bounds[-1] < SMALL_BYTES * len(messages)
                self._pause_bytes = SHALLOW_PAUSE_BYTES if is_small else 2 * SHALLOW_PAUSE_BYTES
            # The first of them has been here since then.
            self._core.receive(messages, began)
        if is_all:
            self._core.drained(time.monotonic())

    def _gather(self, wire: Wire) -> bool:
        """Wait a moment for more, as nothing can be sealed at once anyway.

        A sender on the same machine is read a few rows at a time, and every turn of the loop has
        its price. But its socket holds no more than some two hundred rows, whatever their size:
        pauses are as long as half of that takes to come. Returns whether that was all.
        """
        now = time.monotonic()
        deadline = min(now + GATHER_S, self._core.wake_at(now))
        while now < deadline:
            is_stored = self._pause(min(self._pause_s, deadline - now))
            before = wire.pending_bytes
            if not wire.receive(self._read_bytes):
                return False
            if wire.has_ended:
                break
            received = wire.pending_bytes - before
            if received < self._pause_bytes:
                self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
            elif received > 2 * self._pause_bytes:
                self._pause_s = max(self._pause_s / 2, PAUSE_MIN_S)
            now = time.monotonic()
            if is_stored:
                self._take_result()
                deadline = min(deadline, self._core.wake_at(now))
            if not self._core.is_collecting(now, waiting_bytes=wire.pending_bytes):
                break
        return True

    def _pause(self, pause_s: float) -> bool:
        """Let more come; whether the writer is done, which ends a long pause."""
        if pause_s < _POLL_MIN_S:
            time.sleep(pause_s)
            return bool(self._poll_writing.poll(0))
        return bool(self._poll_writing.poll(pause_s * 1000))

    def _carry_out(self, action: Action) -> None:
        match action:
            case SendStatus(received, durable, request_reply):
                failpoint("ack.before_send")
                self._connection.send_status(
                    received,
                    durable,
                    request_reply=request_reply,
                    unix_time_us=time.time_ns() // 1000,
                )
                self._metrics.acknowledged(durable)
                failpoint("ack.after_send")
            case Close(reason):
                raise SourceError(f"connection given up: {reason}", retry=True)
            case job:
                self._writing.submit(job)
