"""The capture protocol without a socket, a disk or a clock: messages and time in, actions out.

One acknowledgement rule: the position sent to Postgres as flushed is the durable end of the log. A
segment moves it once its writer says that it is stored. A keepalive's position moves it only if no
transaction was open when it came and all that came before it is durable, and only after a progress
object holding it is stored. It never goes back.

The shell calls `receive` with what it read, `drained` when there is no more to read, `stored` when
the writer has finished a job, and `poll` after each of these and whenever `wake_at` has come. One
job is under way at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import MESSAGE_PREFIX, Tag, parse_message

KEEPALIVE: Final = ord("k")
WAL_DATA: Final = ord("w")


@dataclass(frozen=True, slots=True)
class Limits:
    """When to seal, when to wait, when to give up; times in seconds."""

    seal_bytes: int = 8 << 20
    seal_age_s: float = 0.020
    part_bytes: int = 8 << 20
    pending_bytes_max: int = 32 << 20
    progress_interval_s: float = 1.0
    status_interval_s: float = 5.0
    receive_timeout_s: float = 30.0
    stall_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Seal:
    """Append these frames as a segment: whole transactions, or the Commit that ends parts."""

    frames: Frames


@dataclass(frozen=True, slots=True)
class StorePart:
    """Store a piece of the transaction that is being received."""

    frames: Frames


@dataclass(frozen=True, slots=True)
class DiscardParts:
    """Forget the stored parts: the log has that transaction already."""


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """Make an idle position durable."""

    position: Lsn


@dataclass(frozen=True, slots=True)
class SendStatus:
    """Tell Postgres what has been received and what is durable."""

    received: Lsn
    durable: Lsn
    request_reply: bool


class CloseReason(StrEnum):
    """Why the connection must be given up."""

    SILENT = "nothing came from postgres, though a reply was requested"
    STALLED = "nothing could be made durable"
    DISORDER = "postgres sent commits out of order"


@dataclass(frozen=True, slots=True)
class Close:
    """Drop the connection and start again."""

    reason: CloseReason


Job = Seal | StorePart | DiscardParts | StoreProgress
Action = Job | SendStatus | Close


@dataclass(frozen=True, slots=True)
class _Idle:
    """A position without a change: good once everything up to `after` is durable."""

    position: Lsn
    after: Lsn


class Core:
    """One connection's worth of capture, from the log's tip on."""

    def __init__(self, tip: Lsn, *, limits: Limits, now: float) -> None:
        self._limits = limits
        self._tip = tip
        self.durable = tip
        self.received = tip
        self.last_message_at = now
        self.last_keepalive_at: float | None = None
        self.last_commit_ts_us = 0
        self._last_end = tip
        self._open: list[Frames] = []
        self._has_parts = False
        self._queue: deque[Seal | StorePart | DiscardParts] = deque()
        self._complete: deque[Frames] = deque()
        self._complete_at = now
        self._is_drained = True
        self._job: Job | None = None
        self._job_at = now
        self._idle: _Idle | None = None
        self._progress_at = -np.inf
        self._status_at = now
        self._status_durable = Lsn(0)
        self._is_reply_due = True
        self._asked_at: float | None = None
        self._close: CloseReason | None = None

    # What goes in.

    def receive(self, messages: Sequence[bytes | memoryview], now: float) -> None:
        """Take CopyData messages, in order."""
        self.last_message_at = now
        self._asked_at = None
        self._is_drained = False
        first = 0
        for place, message in enumerate(messages):
            if message[0] == KEEPALIVE:
                self._receive_data(messages[first:place], now)
                self._receive_keepalive(message, now)
                first = place + 1
        self._receive_data(messages[first:], now)

    def drained(self) -> None:
        """There is nothing more to read at the moment."""
        self._is_drained = True

    def stored(self, now: float) -> None:
        """The job under way is done and durable."""
        job, self._job = self._job, None
        match job:
            case Seal(frames):
                self.durable = max(self.durable, Lsn(frames.transactions().end_lsn[-1]))
            case StoreProgress(position):
                self.durable = max(self.durable, position)
                self._progress_at = now
            case StorePart() | DiscardParts():
                pass
            case None:
                raise AssertionError("no job was under way")

    # What comes out.

    @property
    def wants_input(self) -> bool:
        """False while so much waits for the writer that no more should be read."""
        return self._pending_bytes() < self._limits.pending_bytes_max

    @property
    def is_at_rest(self) -> bool:
        """True if every whole transaction that was received is durable."""
        return not (self._job or self._queue or self._complete)

    def poll(self, now: float, *, stopping: bool = False) -> list[Action]:
        """What to do now. When `stopping`, what is complete is sealed without waiting for more."""
        actions: list[Action] = []
        if self._job is None:
            job = self._next_job(now, stopping=stopping)
            if job is not None:
                self._job, self._job_at = job, now
                actions.append(job)
        self._check_liveness(now, actions)
        if self._is_status_due(now):
            self._status_at, self._status_durable = now, self.durable
            self._is_reply_due = False
            ask = self._asked_at == now
            actions.append(SendStatus(max(self.received, self.durable), self.durable, ask))
        return actions

    def wake_at(self, now: float) -> float:
        """When `poll` has something to do even if nothing comes in."""
        limits = self._limits
        times = [self._status_at + limits.status_interval_s]
        times.append(
            self.last_message_at + limits.receive_timeout_s / (2 if self._asked_at is None else 1)
        )
        if self._job is not None:
            times.append(self._job_at + limits.stall_timeout_s)
        elif self._complete:
            times.append(self._complete_at + limits.seal_age_s)
        elif self._idle_is_good():
            times.append(self._progress_at + limits.progress_interval_s)
        if self._status_durable < self.durable:
            times.append(self._status_at + limits.progress_interval_s)
        return max(now, min(times))

    # Receiving.

    def _receive_keepalive(self, message: bytes | memoryview, now: float) -> None:
        self.last_keepalive_at = now
        position = Lsn(int.from_bytes(message[1:9], "big"))
        self.received = max(self.received, position)
        if message[17]:
            self._is_reply_due = True
        if not self._open and not self._has_parts:
            self._idle = _Idle(position, self._last_end)

    def _receive_data(self, messages: Sequence[bytes | memoryview], now: float) -> None:
        if not messages:
            return
        frames = _without_foreign_messages(Frames.from_wal_messages(messages))
        self.received = max(self.received, Lsn(int.from_bytes(messages[-1][1:9], "big")))
        commits = frames.transactions().last_frame
        if self._has_parts and len(commits):
            frames = self._end_parts(frames, int(commits[0]))
            commits = frames.transactions().last_frame
        if len(commits):
            whole = int(commits[-1]) + 1
            self._take_complete(Frames.concat([*self._open, frames.slice(0, whole)]), now)
            self._open = []
            frames = frames.slice(whole, len(frames))
        if len(frames):
            self._open.append(frames)
        if _size(self._open) >= self._limits.part_bytes:
            self._spill()

    def _take_complete(self, frames: Frames, now: float) -> None:
        """Whole transactions; those that hold nothing, or that the log has, go no further."""
        transactions = frames.transactions()
        if not self._is_rising(transactions.end_lsn):
            return
        last_end = Lsn(transactions.end_lsn[-1])
        self.last_commit_ts_us = int(transactions.commit_ts_us[-1])
        keep = (transactions.end_lsn > self._tip) & _has_content(frames, transactions.last_frame)
        if not keep[-1] and last_end > self._tip:
            kept = transactions.end_lsn[keep]
            self._idle = _Idle(last_end, Lsn(kept[-1]) if len(kept) else self._last_end)
        if keep.any():
            if not self._complete:
                self._complete_at = now
            self._complete.append(
                frames if keep.all() else _only(frames, transactions.last_frame, keep)
            )
            self._last_end = Lsn(transactions.end_lsn[keep][-1])

    def _end_parts(self, frames: Frames, commit: int) -> Frames:
        """The huge transaction ends: store the rest of it, then seal its Commit. Returns what is
        left.
        """
        rest = Frames.concat([*self._open, frames.slice(0, commit)])
        end_frame = frames.slice(commit, commit + 1)
        end = end_frame.transactions().end_lsn
        self._open, self._has_parts = [], False
        if not self._is_rising(end):
            return Frames.empty()
        if end[0] <= self._tip:
            self._queue.append(DiscardParts())
        else:
            if len(rest):
                self._queue.append(StorePart(rest))
            self._queue.append(Seal(end_frame))
            self._last_end = Lsn(end[0])
            self.last_commit_ts_us = int(end_frame.transactions().commit_ts_us[0])
        return frames.slice(commit + 1, len(frames))

    def _spill(self) -> None:
        """The open transaction is too big to keep: hand over what came before it, then a part."""
        self._queue_complete()
        self._queue.append(StorePart(Frames.concat(self._open)))
        self._open, self._has_parts = [], True

    def _is_rising(self, ends: NDArray[np.int64]) -> bool:
        # Transactions at or before the tip may come again after a rewind; later ones come once, in
        # order.
        if (np.diff(ends) <= 0).any() or (ends[0] > self._tip and ends[0] <= self._last_end):
            self._close = CloseReason.DISORDER
        return self._close is None

    # Deciding.

    def _next_job(self, now: float, *, stopping: bool) -> Job | None:
        if not self._queue and self._complete and (stopping or self._is_seal_due(now)):
            self._queue_complete()
        if self._queue:
            return self._queue.popleft()
        if self._idle_is_good() and (
            stopping or now >= self._progress_at + self._limits.progress_interval_s
        ):
            assert self._idle is not None
            return StoreProgress(self._idle.position)
        return None

    def _is_seal_due(self, now: float) -> bool:
        limits = self._limits
        is_old = now >= self._complete_at + limits.seal_age_s
        return self._is_drained or is_old or _size(self._complete) >= limits.seal_bytes

    def _queue_complete(self) -> None:
        """Queue the complete transactions as segments of about the right size."""
        run: list[Frames] = []
        while self._complete:
            run.append(self._complete.popleft())
            if not self._complete or _size(run) >= self._limits.seal_bytes:
                self._queue.append(Seal(Frames.concat(run)))
                run = []

    def _idle_is_good(self) -> bool:
        idle = self._idle
        return idle is not None and self.durable >= idle.after and idle.position > self.durable

    def _check_liveness(self, now: float, actions: list[Action]) -> None:
        limits = self._limits
        if self._job is not None and now >= self._job_at + limits.stall_timeout_s:
            self._close = self._close or CloseReason.STALLED
        if self.wants_input:
            silent_s = now - self.last_message_at
            if silent_s >= limits.receive_timeout_s and self._asked_at is not None:
                self._close = self._close or CloseReason.SILENT
            elif silent_s >= limits.receive_timeout_s / 2 and self._asked_at is None:
                self._asked_at = now
                self._is_reply_due = True
        if self._close is not None:
            actions.append(Close(self._close))

    def _is_status_due(self, now: float) -> bool:
        limits = self._limits
        has_news = self.durable > self._status_durable
        return (
            self._is_reply_due
            or now >= self._status_at + limits.status_interval_s
            or (has_news and now >= self._status_at + limits.progress_interval_s)
        )

    def _pending_bytes(self) -> int:
        jobs = [
            job.frames for job in (self._job, *self._queue) if isinstance(job, Seal | StorePart)
        ]
        return _size(jobs) + _size(self._complete) + _size(self._open)


def _size(runs: Sequence[Frames] | deque[Frames]) -> int:
    return sum(run.data_bytes for run in runs)


def _without_foreign_messages(frames: Frames) -> Frames:
    """Drop logical messages that are not ours or not part of a transaction: nobody needs them."""
    places = np.flatnonzero(frames.tags == Tag.MESSAGE)
    if not len(places):
        return frames
    keep = np.ones(len(frames), dtype=bool)
    for place in places:
        message = parse_message(frames.frame(int(place)))
        keep[place] = message.transactional and message.prefix.startswith(MESSAGE_PREFIX)
    return frames.select(keep)


def _has_content(frames: Frames, last_frame: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each transaction, whether it holds more than its own frame: Begin, Commit, Origin."""
    tags = frames.tags
    is_content = ~((tags == Tag.BEGIN) | (tags == Tag.COMMIT) | (tags == Tag.ORIGIN))
    counted = np.cumsum(is_content)[last_frame]
    return np.diff(counted, prepend=0) > 0


def _only(frames: Frames, last_frame: NDArray[np.int64], keep: NDArray[np.bool_]) -> Frames:
    sizes = np.diff(last_frame, prepend=-1)
    return frames.select(np.repeat(keep, sizes))
