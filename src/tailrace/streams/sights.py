"""What was last seen of the log for the streams of a pipeline: its end, the age of what waits, dead
letters, tables that a lost slot has left.

Whoever looks reads the store, which may take long or hang. Whoever asks what was seen does not: a
session that holds locks is ended by the server if its thread waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogError
from tailrace.log import Reader
from tailrace.log.age import oldest_commit_s
from tailrace.log.wanted import lost_with_slot
from tailrace.model import Lsn
from tailrace.sinks.letters.dead_letter import DeadLetters, lanes_of
from tailrace.sinks.queue.outbox import count_copies

COUNT_S: Final = 5.0
"""How often dead letters are counted."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters that wait, the keys that are parked by them, and copies on their way."""

    letter_count: int
    parked_count: int
    copy_count: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The first commit after a position, by Postgres's clock; None if there was none."""

    position: Lsn
    oldest_s: float | None


class Sights:
    """Of one log. One thread looks, others ask."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._end: Lsn | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._letters: dict[str, tuple[float, Letters]] = {}
        self._lost: dict[int, Lsn] | None = {}
        self._lost_turn = threading.Lock()
        self._forgotten_count = 0
        self._lost_at = -COUNT_S

    @property
    def lost(self) -> Mapping[int, Lsn] | None:
        """By oid, behind which position a table's base must be since the slot was lost; None while
        that was not seen since it was forgotten.
        """
        return self._lost

    def forget_lost(self) -> None:
        """What was seen of it, or is just being looked at, counts no more."""
        with self._lost_turn:
            self._lost = None
            self._forgotten_count += 1

    def letters(self, stream: str) -> Letters | None:
        """As of a few seconds ago; None if they were not seen."""
        found = self._letters.get(stream)
        return None if found is None else found[1]

    def lag(self, stream: str, position: Lsn | None) -> tuple[int | None, float | None]:
        """How many bytes of the log, and seconds, a stream is behind; None if that was not seen."""
        end, waiting = self._end, self._waiting.get(stream)
        if position is None or end is None or waiting is None:
            return None, None
        if position >= end or waiting.oldest_s is None:
            return max(0, end - position), 0.0
        return end - position, max(0.0, time.time() - waiting.oldest_s)

    def look(self, positions: Mapping[str, Lsn | None]) -> None:
        """At all of it, for streams that are delivered up to there; what cannot be read now stays
        as it was seen before, but for lags.
        """
        self._look_at_lost()
        self._look_at_lags(positions)
        now = time.monotonic()
        for stream in positions:
            if now - self._letters.get(stream, (-COUNT_S,))[0] >= COUNT_S:
                with suppress(LogError):
                    self._letters[stream] = now, self._count(stream)

    def _look_at_lost(self) -> None:
        now = time.monotonic()
        with self._lost_turn:
            number, is_known = self._forgotten_count, self._lost is not None
        if is_known and now - self._lost_at < COUNT_S:
            return
        with suppress(LogError):
            lost = lost_with_slot(self._reader.store)
            with self._lost_turn:
                if number == self._forgotten_count:
                    self._lost, self._lost_at = lost, now

    def _look_at_lags(self, positions: Mapping[str, Lsn | None]) -> None:
        """The end of the log is looked up once for all."""
        known = {stream: at for stream, at in positions.items() if at is not None}
        before, waiting = self._waiting, dict[str, _Waiting]()
        try:
            end = self._reader.tip().segment_end if known else self._end
        except LogError:
            end = None
        for stream, position in known.items() if end is not None else ():
            assert end is not None
            last = before.get(stream)
            with suppress(LogError):
                waiting[stream] = self._wait(position, end, last)
        self._end, self._waiting = end, waiting

    def _wait(self, position: Lsn, end: Lsn, last: _Waiting | None) -> _Waiting:
        """What comes first after a position never changes: it is read once."""
        if position >= end:
            return _Waiting(position, None)
        if last is not None and last.position == position and last.oldest_s is not None:
            return last
        return _Waiting(position, oldest_commit_s(self._reader, position))

    def _count(self, stream: str) -> Letters:
        store = self._reader.store
        names = DeadLetters(store, stream).names()
        parked = lanes_of(name for name in names if not name.is_outdone)
        return Letters(len(names), len(parked), count_copies(store, stream))
