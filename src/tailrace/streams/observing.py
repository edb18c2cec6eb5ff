"""How each stream of a pipeline is doing: its state in one word, how far it is, what waits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol

from tailrace.control.stream_reports import StreamReport, Tally
from tailrace.control.streams import Status
from tailrace.errors import LogError, TailraceError
from tailrace.log import Reader
from tailrace.log.age import oldest_commit_s
from tailrace.model import Lsn
from tailrace.sinks.queue.dead_letter import DeadLetters, lanes_of
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

    def __init__(self, reader: Reader, *, node: str) -> None:
        self._reader = reader
        self._node = node
        self._counted: dict[str, tuple[float, Letters]] = {}

    def report(self, place: Delivering) -> StreamReport:
        """As of now; what cannot be found out at this moment is left out."""
        state = place.state
        status, reason = _status(place)
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


def _status(place: Delivering) -> tuple[Status, str | None]:
    state = place.state
    if state.is_stopped:
        assert state.error is not None, "a stream stops for a reason"
        return Status.STOPPED, _told(state.error)
    if state.error is not None:
        return Status.FAILOVER, _told(state.error)
    return Status.REPLAY if state.replaying else Status.HEALTHY, None


def _told(error: TailraceError) -> str:
    text = f"{error} ({error.hint})" if error.hint else str(error)
    return text[:_REASON_MAX]
