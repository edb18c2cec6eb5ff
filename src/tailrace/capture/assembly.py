"""Puts whole transactions together from the messages of one connection.

What goes on is exactly what the log needs: transactions that end after its tip and hold something,
whole, in commit order. One that grows too big to keep goes on in parts. The order and the frame of
transactions (Begin, rows, Commit) are checked here, because the log keeps for good what it is
given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.actions import CloseReason, DiscardParts, Seal, StorePart
from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.integers import steps
from tailrace.postgres.messages import Messages
from tailrace.postgres.pgoutput import MESSAGE_PREFIX, Tag, parse_message


@dataclass(frozen=True, slots=True)
class Whole:
    """Transactions for the log."""

    frames: Frames
    end: Lsn
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class Empty:
    """The newest transaction held nothing for the log, and ended here."""

    end: Lsn


_NOWHERE: Final = np.empty(0, np.int64)
_AT_FIRST: Final = np.zeros(1, np.int64)
_BEGIN_BYTES: Final = 21

Assembled = Whole | Empty | StorePart | Seal | DiscardParts


class Rejected(Exception):
    """The stream is not one that Postgres sends."""

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class FrameBuffer:
    """Runs of frames that wait, and how many bytes they are."""

    def __init__(self) -> None:
        self._runs: list[Frames] = []
        self.data_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, frames: Frames) -> None:
        """Append a run, unless it is empty."""
        if len(frames):
            self._runs.append(frames)
            self.data_bytes += frames.data_bytes

    def take(self) -> Frames:
        """All of it as one run; nothing is left."""
        frames = Frames.concat(self._runs)
        self._runs, self.data_bytes = [], 0
        return frames


class Assembly:
    """The state between two messages: the transaction that is open, if one is."""

    def __init__(self, tip: Lsn, *, part_bytes: int) -> None:
        self._tip = tip
        self._part_bytes = part_bytes
        self._open = FrameBuffer()
        self._has_parts = False
        self._last_end = Lsn(0)

    @property
    def is_open(self) -> bool:
        """True between a Begin and its Commit."""
        return len(self._open) > 0 or self._has_parts

    @property
    def open_bytes(self) -> int:
        """How much of the open transaction is kept."""
        return self._open.data_bytes

    def take(self, messages: Messages) -> Iterator[Assembled]:
        """Take XLogData messages, in order; raises Rejected."""
        try:
            yield from self._take(_without_foreign_messages(Frames.from_wal_messages(messages)))
        except SegmentCorrupt as error:
            raise Rejected(CloseReason.MALFORMED) from error

    def _take(self, frames: Frames) -> Iterator[Assembled]:
        commits = frames.transactions.last_frame
        if self._has_parts and len(commits):
            first = int(commits[0])
            yield from self._end_parts(frames.slice(0, first), frames.slice(first, first + 1))
            frames = frames.slice(first + 1, len(frames))
            commits = commits[1:] - (first + 1)
        if len(commits):
            end = int(commits[-1]) + 1
            self._open.add(frames.slice(0, end))
            yield from self._end_whole(self._open.take())
            frames = frames.slice(end, len(frames))
        self._open.add(frames)
        if self._open.data_bytes >= self._part_bytes:
            yield self._next_part()

    def _end_whole(self, frames: Frames) -> Iterator[Whole | Empty]:
        """Whole transactions; those that hold nothing, or that the log has, go no further."""
        transactions = frames.transactions
        self._check_order(transactions.end_lsn)
        _check_begins(frames, np.concatenate([[0], transactions.last_frame[:-1] + 1]))
        keep = transactions.end_lsn > self._tip
        keep &= _has_content(frames, transactions.last_frame)
        if keep.any():
            kept = frames if keep.all() else _only(frames, transactions.last_frame, keep)
            last = np.flatnonzero(keep)[-1]
            end = Lsn(transactions.end_lsn[last])
            yield Whole(kept, end, int(transactions.commit_ts_us[last]))
        if not keep[-1] and self._last_end > self._tip:
            yield Empty(self._last_end)

    def _end_parts(self, rest: Frames, commit: Frames) -> Iterator[StorePart | Seal | DiscardParts]:
        """The huge transaction ends: store what is left of it, then seal its Commit."""
        self._open.add(rest)
        frames = self._open.take()
        _check_begins(frames, _NOWHERE)
        self._has_parts = False
        self._check_order(commit.transactions.end_lsn)
        if self._last_end <= self._tip:
            yield DiscardParts()
            return
        if len(frames):
            yield StorePart(frames)
        yield Seal(commit)

    def _next_part(self) -> StorePart:
        frames = self._open.take()
        _check_begins(frames, _NOWHERE if self._has_parts else _AT_FIRST)
        self._has_parts = True
        return StorePart(frames)

    def _check_order(self, ends: NDArray[np.int64]) -> None:
        # Also those that the log has already, after a rewind, come once and in order.
        if (steps(ends, since=self._last_end) <= 0).any():
            raise Rejected(CloseReason.DISORDER)
        self._last_end = Lsn(ends[-1])


def _check_begins(frames: Frames, expected: NDArray[np.int64]) -> None:
    """A transaction begins where the one before it has ended, and nowhere else."""
    if not np.array_equal(frames.frames_of(Tag.BEGIN, size=_BEGIN_BYTES), expected):
        raise Rejected(CloseReason.MALFORMED)


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
    return steps(counted, since=0) > 0


def _only(frames: Frames, last_frame: NDArray[np.int64], keep: NDArray[np.bool_]) -> Frames:
    sizes = steps(last_frame, since=-1)
    return frames.select(np.repeat(keep, sizes))
