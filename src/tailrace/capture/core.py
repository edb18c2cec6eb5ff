"""The capture protocol without a socket, a disk or a clock: messages and time in, actions out.

One acknowledgement rule: the position sent to Postgres as flushed is the durable end of the log. A
segment moves it once its writer says that it is stored. A keepalive's position moves it only if no
transaction was open when it came and all that came before it is durable, and only after a progress
object holding it is stored. It never goes back.

The shell calls `receive` with what it read, `drained` when it looked and found no more, `stored`
when the writer has finished a job, and `poll` after each of these and whenever `wake_at` has come.
One job is under way at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.actions import (
    Action,
    Close,
    CloseReason,
    DiscardParts,
    Job,
    Limits,
    Seal,
    SendStatus,
    StorePart,
    StoreProgress,
)
from tailrace.capture.assembly import Assembly, Empty, FrameBuffer, Rejected, Whole
from tailrace.capture.trickle import Trickle
from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn
from tailrace.postgres.integers import integers_at
from tailrace.postgres.messages import KEEPALIVE, WAL_DATA, Messages

_KEEPALIVE_BYTES: Final = 18


@dataclass(frozen=True, slots=True)
class _Idle:
    """A position without a change: good once everything up to `after` is durable."""

    position: Lsn
    after: Lsn


class Core:
    """One connection's worth of capture, from the log's tip on."""

    def __init__(self, tip: Lsn, *, limits: Limits, now: float) -> None:
        self._limits = limits
        self.durable = tip
        self.received = tip
        self.last_keepalive_at: float | None = None
        self.last_commit_ts_us = 0
        self._assembly = Assembly(tip, part_bytes=limits.part_bytes)
        self._last_end = tip
        self._complete = FrameBuffer()
        self._complete_count = 0
        self._complete_at = now
        self._trickle = Trickle(limits.trickle_bytes, limits.trickle_interval_s, now=now)
        self._is_drained = True
        self._drained_at = now
        self._is_stopping = False
        self._queue: deque[Seal | StorePart | DiscardParts] = deque()
        self._queue_bytes = 0
        self._job: Job | None = None
        self._job_at = now
        self._idle: _Idle | None = None
        self._progress_at = -inf
        self._status_at = -inf
        self._status_durable = Lsn(0)
        self._is_reply_due = False
        self._heard_at = now
        self._asked_at: float | None = None
        self._is_asking = False
        self._close: CloseReason | None = None

    # What goes in.

    def receive(self, messages: Messages, now: float) -> None:
        """Take CopyData messages, in order."""
        self._heard_at, self._asked_at = now, None
        self._is_drained = False
        try:
            self._take(messages, now)
        except Rejected as rejected:
            self._close = rejected.reason
        except SegmentCorrupt:
            self._close = CloseReason.MALFORMED

    def drained(self, now: float) -> None:
        """There was nothing more to read at this moment."""
        self._is_drained = True
        self._drained_at = now

    def stored(self, now: float) -> None:
        """The job under way is done and durable."""
        job, self._job = self._job, None
        match job:
            case Seal(frames):
                self.durable = max(self.durable, Lsn(frames.transactions.end_lsn[-1]))
            case StoreProgress(position):
                self.durable = max(self.durable, position)
                self._progress_at = now
            case StorePart() | DiscardParts():
                pass
            case None:
                raise AssertionError("no job was under way")
        if not isinstance(job, StoreProgress):
            self._queue_bytes -= _data_bytes(job)

    def stop(self) -> None:
        """Nothing more will be read; what is complete is to be durable without waiting for more."""
        self._is_stopping = True

    # What comes out.

    @property
    def wants_input(self) -> bool:
        """False while so much waits for the writer that no more should be read."""
        if self._is_stopping:
            return False
        pending_bytes = self._queue_bytes + self._complete.data_bytes + self._assembly.open_bytes
        # If nothing waits for the writer, only what is still to be read can bring it work.
        return self.is_at_rest or pending_bytes < self._limits.pending_bytes_max

    @property
    def piece_bytes_max(self) -> int:
        """No more should be handed over at once: what is sealed or stored as a part is as large."""
        return min(self._limits.seal_bytes, self._limits.part_bytes)

    def is_collecting(self, now: float, *, waiting_bytes: int = 0) -> bool:
        """True while nothing more can be sealed, be it what waits to be handed over: a job is under
        way, or so much has come that it waits for its age.
        """
        if self._job is not None:
            return True
        next_bytes = self._weight_bytes + self._limits.trickle_transaction_bytes + waiting_bytes
        return not (self._queue or self._trickle.allows(next_bytes, now))

    @property
    def is_at_rest(self) -> bool:
        """True if every whole transaction that was received is durable."""
        return not (self._job or self._queue or self._complete)

    def poll(self, now: float) -> list[Action]:
        """What to do now."""
        actions: list[Action] = []
        if self._job is None and self._close is None:
            self._job = self._next_job(now)
            if self._job is not None:
                self._job_at = now
                actions.append(self._job)
        self._check_liveness(now)
        if self._close is not None:
            actions.append(Close(self._close))
        elif now >= self._status_due_at():
            actions.append(self.status(now))
        return actions

    def status(self, now: float) -> SendStatus:
        """What there is to tell Postgres at this moment."""
        self._status_at, self._status_durable = now, self.durable
        is_asking, self._is_asking, self._is_reply_due = self._is_asking, False, False
        return SendStatus(max(self.received, self.durable), self.durable, is_asking)

    def wake_at(self, now: float) -> float:
        """When `poll` has something to do even if nothing comes in."""
        limits = self._limits
        times = [self._status_due_at()]
        if self.wants_input:
            since = self._heard_at if self._asked_at is None else self._asked_at
            times.append(since + limits.receive_timeout_s / 2)
        if self._job is not None:
            times.append(self._job_at + limits.stall_timeout_s)
        elif self._complete:
            times.append(self._complete_at + limits.seal_age_s)
        elif self._idle_is_good():
            times.append(self._progress_at + limits.progress_interval_s)
        return max(now, min(times))

    # Receiving.

    def _take(self, messages: Messages, now: float) -> None:
        tags = messages.tags
        is_keepalive = tags == KEEPALIVE
        if not (is_keepalive | (tags == WAL_DATA)).all():
            raise Rejected(CloseReason.MALFORMED)
        keepalives = np.flatnonzero(is_keepalive)
        if len(keepalives):
            # A sender that keeps up sends one after each commit; the last says all that they say.
            position = self._hear(messages, keepalives, now)
            after = int(keepalives[-1]) + 1
            self._take_data(messages.slice(0, after), now)
            if not self._assembly.is_open:
                self._idle = _Idle(position, self._last_end)
            messages = messages.slice(after, len(messages))
        self._take_data(messages, now)

    def _hear(self, messages: Messages, keepalives: NDArray[np.intp], now: float) -> Lsn:
        """Take keepalives; where the server stands."""
        starts = messages.bounds[keepalives] + messages.lead
        if (messages.bounds[keepalives + 1] - starts != _KEEPALIVE_BYTES).any():
            raise Rejected(CloseReason.MALFORMED)
        self.last_keepalive_at = now
        if messages.data[starts + _KEEPALIVE_BYTES - 1].any():
            self._is_reply_due = True
        position = Lsn(integers_at(messages.data, starts[-1:] + 1, ">u8")[0])
        self.received = max(self.received, position)
        return position

    def _take_data(self, messages: Messages, now: float) -> None:
        if not len(messages):
            return
        for assembled in self._assembly.take(messages):
            match assembled:
                case Whole(frames, end, commit_ts_us):
                    self._last_end, self.last_commit_ts_us = end, commit_ts_us
                    self._complete_at = self._complete_at if self._complete else now
                    self._complete.add(frames)
                    self._complete_count += len(frames.transactions.end_lsn)
                    if self._complete.data_bytes >= self._limits.seal_bytes:
                        self._queue_complete()
                case Empty(end):
                    self._idle = _Idle(end, self._last_end)
                case Seal(frames):
                    transactions = frames.transactions
                    self._last_end = Lsn(transactions.end_lsn[-1])
                    self.last_commit_ts_us = int(transactions.commit_ts_us[-1])
                    self._enqueue(assembled)
                case StorePart() | DiscardParts():
                    # What was complete before this transaction goes before it.
                    self._queue_complete()
                    self._enqueue(assembled)
        self.received = max(self.received, _position(messages))

    def _queue_complete(self) -> None:
        if self._complete:
            self._enqueue(Seal(self._complete.take()))
            self._complete_count = 0

    def _enqueue(self, job: Seal | StorePart | DiscardParts) -> None:
        self._queue.append(job)
        self._queue_bytes += _data_bytes(job)

    # Deciding.

    def _next_job(self, now: float) -> Job | None:
        if not self._queue and self._is_seal_due(now):
            self._trickle.spend(self._weight_bytes, now)
            self._queue_complete()
        if self._queue:
            return self._queue.popleft()
        is_due = self._is_stopping or now >= self._progress_at + self._limits.progress_interval_s
        if self._idle is not None and self._idle_is_good() and is_due:
            return StoreProgress(self._idle.position)
        return None

    def _is_seal_due(self, now: float) -> bool:
        is_old = now >= self._complete_at + self._limits.seal_age_s
        is_trickle = self._is_drained and self._trickle.allows(self._weight_bytes, now)
        return is_trickle or self._is_stopping or is_old

    @property
    def _weight_bytes(self) -> int:
        """How much is complete, as the trickle is measured."""
        of_transactions = self._complete_count * self._limits.trickle_transaction_bytes
        return self._complete.data_bytes + of_transactions

    def _idle_is_good(self) -> bool:
        idle = self._idle
        return idle is not None and self.durable >= idle.after and idle.position > self.durable

    def _check_liveness(self, now: float) -> None:
        limits = self._limits
        if self._job is not None and now >= self._job_at + limits.stall_timeout_s:
            self._close = self._close or CloseReason.STALLED
        # While nothing is read, silence proves nothing.
        if not self.wants_input:
            self._heard_at, self._asked_at = now, None
        elif self._asked_at is not None:
            # Not `now`: if we were held up ourselves, the answer may wait to be read.
            if self._drained_at >= self._asked_at + limits.receive_timeout_s / 2:
                self._close = self._close or CloseReason.SILENT
        elif now >= self._heard_at + limits.receive_timeout_s / 2:
            self._asked_at, self._is_asking = now, True

    def _status_due_at(self) -> float:
        limits = self._limits
        interval_s = limits.status_interval_s
        if self._status_durable < self.durable:
            interval_s = min(interval_s, limits.progress_interval_s)
        if self._is_reply_due:
            interval_s = min(interval_s, limits.reply_interval_s)
        return -inf if self._is_asking else self._status_at + interval_s


def _position(messages: Messages) -> Lsn:
    """Where the last one of them stands in the WAL."""
    return Lsn(int.from_bytes(messages.message(len(messages) - 1)[1:9], "big"))


def _data_bytes(job: Job | None) -> int:
    return job.frames.data_bytes if isinstance(job, Seal | StorePart) else 0
