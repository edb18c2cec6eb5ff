"""How each stream of a pipeline is doing: its state in one word, how far it is, what waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from tailrace.control.stream_reports import StreamReport, Tally
from tailrace.control.streams import Status, sayable
from tailrace.errors import LogError, TailraceError
from tailrace.log import Reader
from tailrace.log.age import oldest_commit_s
from tailrace.log.wanted import lost_with_slot
from tailrace.model import Lsn
from tailrace.sinks.letters.dead_letter import DeadLetters, lanes_of
from tailrace.sinks.queue.outbox import count_copies
from tailrace.streams.place import Wish
from tailrace.streams.stream import StreamState

COUNT_S: Final = 5.0
"""How often dead letters are counted."""

_REASON_MAX: Final = 1000


class Delivering(Protocol):
    """What is told of a place."""

    @property
    def wish(self) -> Wish: ...
    @property
    def state(self) -> StreamState: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def epoch(self) -> int: ...
    @property
    def is_fenced(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters that wait, the keys that are parked by them, and copies on their way."""

    letter_count: int
    parked_count: int
    copy_count: int


class Observer:
    """Remembers the part of the log that it has seen. Not thread-safe."""

    def __init__(
        self, reader: Reader, *, node: str = "", slot_is_lost: Callable[[], bool] = lambda: False
    ) -> None:
        self._reader = reader
        self._node = node
        self._slot_is_lost = slot_is_lost
        self._counted: dict[str, tuple[float, Letters]] = {}
        self._lost: tuple[float, dict[int, Lsn]] = (-COUNT_S, {})

    def report(self, place: Delivering) -> StreamReport:
        """As of now; what cannot be found out at this moment is left out."""
        state = place.state
        status, reason = self._status(state)
        stream = place.wish.runnable
        if reason is None and stream is not None and not state.taken:
            reason = f"none of its tables is taken up yet: {', '.join(stream.tables)}"[:_REASON_MAX]
        position = state.delivered.position.commit_lsn if state.delivered is not None else None
        lag_bytes, lag_s = self._lag(position)
        letters = self.letters(place.wish.name)
        return StreamReport(
            name=place.wish.name,
            status=status,
            reason=reason,
            node=self._node,
            epoch=place.epoch,
            position=position,
            lag_bytes=lag_bytes,
            lag_seconds=lag_s,
            dead_letter_count=None if letters is None else letters.letter_count,
        )

    def letters(self, stream: str) -> Letters | None:
        """As of a few seconds ago; None if the store cannot be read."""
        now = time.monotonic()
        counted_at, counted = self._counted.get(stream, (-COUNT_S, None))
        if counted is not None and now - counted_at < COUNT_S:
            return counted
        store = self._reader.store
        try:
            names = DeadLetters(store, stream).names()
            copies = count_copies(store, stream)
        except LogError:
            return None
        parked = lanes_of(name for name in names if not name.is_outdone)
        counted = Letters(len(names), len(parked), copies)
        self._counted[stream] = now, counted
        return counted

    def _status(self, state: StreamState) -> tuple[Status, str | None]:
        if state.is_stopped:
            assert state.error is not None, "a stream stops for a reason"
            return Status.STOPPED, _told(state.error)
        if state.error is not None:
            return Status.FAILOVER, _told(state.error)
        if state.replaying:
            return Status.REPLAY, None
        if reason := self._recovery(state):
            return Status.SLOT_RECOVERY, reason
        return Status.HEALTHY, None

    def _recovery(self, state: StreamState) -> str:
        """What a lost slot keeps the stream waiting for, if anything: first for capture, then for a
        new base of each table of which changes are missing.
        """
        if state.taken and self._slot_is_lost():
            # Capture puts marks while it mends that: look at once when it has.
            self._lost = (-COUNT_S, {})
            return "the slot is lost, and capture has not mended that yet"
        lost = self._lost_tables()
        waiting = [t.qualified for t in state.taken if t.generation < lost.get(t.oid, t.generation)]
        if not waiting:
            return ""
        more = f" and {len(waiting) - 1} more wait" if len(waiting) > 1 else " waits"
        return f"the slot was lost: {waiting[0]}{more} for a new base"

    def _lost_tables(self) -> dict[int, Lsn]:
        """As of a few seconds ago."""
        now = time.monotonic()
        seen_at, lost = self._lost
        if now - seen_at >= COUNT_S:
            with suppress(LogError):
                lost = lost_with_slot(self._reader.store)
            self._lost = now, lost
        return lost

    def _lag(self, position: Lsn | None) -> tuple[int | None, float | None]:
        if position is None:
            return None, None
        try:
            end = self._reader.tip().segment_end
            oldest_s = oldest_commit_s(self._reader, position) if end > position else None
        except LogError:
            return None, None
        age_s = 0.0 if oldest_s is None else max(0.0, time.time() - oldest_s)
        return max(0, end - position), age_s


def _told(error: TailraceError) -> str:
    text = f"{error} ({error.hint})" if error.hint else str(error)
    return sayable(text)[:_REASON_MAX]
