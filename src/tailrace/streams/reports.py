"""Streams as the control schema shows them: the state in one word, and how far each is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

from tailrace.control.stream_reports import StreamReport, Tally, put_reports
from tailrace.control.streams import Status
from tailrace.errors import LogError, TailraceError
from tailrace.log import Reader
from tailrace.log.age import oldest_commit_s
from tailrace.model import Lsn
from tailrace.postgres.session import Connection
from tailrace.sinks.queue.dead_letter import DeadLetters
from tailrace.streams.place import Wish
from tailrace.streams.stream import StreamState

REPORT_S: Final = 10.0
"""How often a stream is reported of which nothing is new."""

ENDED: Final = "its pipeline has ended, and no other has taken it up yet"

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


class Reports:
    """One pipeline's reports. Remembers what has arrived, and the part of the log that it has seen.
    Not thread-safe.
    """

    def __init__(self, reader: Reader, *, source: str, node: str) -> None:
        self._reader = reader
        self._source = source
        self._node = node
        self._counted: dict[str, tuple[float, int]] = {}
        self._arrived: dict[str, tuple[StreamReport, Tally, float]] = {}

    def send(self, conn: Connection, places: Iterable[Delivering]) -> None:
        """Report what is new, and what was not reported for a while. What does not arrive, because
        somebody has locked the row for instance, is made up for the next time.
        """
        now = time.monotonic()
        due = [each for place in places if (each := self._due(place, now)) is not None]
        arrived = put_reports(conn, self._source, due) if due else set()
        for report, since in due:
            if report.name in arrived:
                _, tally, _ = self._arrived.get(report.name, (report, Tally(), 0.0))
                self._arrived[report.name] = report, tally.plus(since), now

    def take_leave(self, conn: Connection, places: Iterable[Delivering]) -> None:
        """This pipeline ends: what it leaves waits for another."""
        reports = [self._report(place) for place in places]
        ended = [
            (replace(report, status=Status.STOPPED, reason=ENDED), Tally())
            for report in reports
            if report.status is not Status.STOPPED
        ]
        if ended:
            put_reports(conn, self._source, ended)

    def _due(self, place: Delivering, now: float) -> tuple[StreamReport, Tally] | None:
        report = self._report(place)
        last, tally, at = self._arrived.get(place.wish.name, (None, Tally(), 0.0))
        since = place.tally.since(tally)
        is_news = report != last or since != Tally()
        return (report, since) if is_news or now - at >= REPORT_S else None

    def _report(self, place: Delivering) -> StreamReport:
        """As of now; what cannot be found out at this moment is left out."""
        state = place.state
        status, reason = _status(place)
        position = state.delivered.position.commit_lsn if state.delivered is not None else None
        lag_bytes, lag_s = self._lag(position)
        return StreamReport(
            name=place.wish.name,
            status=status,
            reason=reason,
            node=self._node,
            epoch=place.epoch,
            position=position,
            lag_bytes=lag_bytes,
            lag_seconds=lag_s,
            dead_letter_count=self._letters(place.wish.name),
        )

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

    def _letters(self, stream: str) -> int | None:
        counted_at, count = self._counted.get(stream, (-COUNT_S, 0))
        now = time.monotonic()
        if now - counted_at < COUNT_S:
            return count
        try:
            count = len(DeadLetters(self._reader.store, stream).names())
        except LogError:
            return None
        self._counted[stream] = now, count
        return count


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
