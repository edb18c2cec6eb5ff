"""Tells the control schema how streams are doing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tailrace.control.stream_reports import StreamReport, Tally, put_reports
from tailrace.control.streams import Status
from tailrace.postgres.session import Connection
from tailrace.streams.observing import Delivering, Observer

REPORT_S: Final = 10.0
"""How often a stream is reported of which nothing is new."""

ENDED: Final = "its pipeline has ended, and no other has taken it up yet"


class Reports:
    """One pipeline's reports. Remembers what has arrived. Not thread-safe."""

    def __init__(self, observer: Observer, *, source: str) -> None:
        self._observer = observer
        self._source = source
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
        reports = [self._observer.report(place) for place in places]
        ended = [
            (replace(report, status=Status.STOPPED, reason=ENDED), Tally())
            for report in reports
            if report.status is not Status.STOPPED
        ]
        if ended:
            put_reports(conn, self._source, ended)

    def _due(self, place: Delivering, now: float) -> tuple[StreamReport, Tally] | None:
        report = self._observer.report(place)
        last, tally, at = self._arrived.get(place.wish.name, (None, Tally(), 0.0))
        since = place.tally.since(tally)
        is_news = report != last or since != Tally()
        return (report, since) if is_news or now - at >= REPORT_S else None
