"""Replays that are asked for in `tailrace.streams`, and what becomes of them, in the same row.

The note says under which id a window was taken up, and is written before the request is: so a
pipeline that dies between the two, or another one that takes over, asks under the same id and
nothing is replayed twice.

    window, no such note     a wish: take an id, then ask
    window, note with an id  wait for it; ask, if nobody has; clear the window when it is over
    no window, with an id    somebody has cleared it: cancel, then tell the outcome
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from tailrace.control.stream_replays import ReplayColumns, write_available, write_replay
from tailrace.control.streams import Moment, Status, StreamRow
from tailrace.errors import ConfigError
from tailrace.failpoint import failpoint
from tailrace.log import Reader
from tailrace.postgres.session import Connection
from tailrace.storage import Store
from tailrace.streams.replay.outcome import Outcome
from tailrace.streams.replay.request import Request, show_window, to_time, to_us
from tailrace.streams.replay.requests import Replays
from tailrace.streams.replay.window import available

AVAILABLE_S: Final = 10.0
"""How often it is told what the log has."""

_REFUSED: Final = "another window was refused: this one is under way"
_TAKEN: Final = re.compile(r"asked as ([0-9T]+-[0-9a-f]+)")


class ReplaysBySql:
    """For one source, on the session of a pipeline. Whoever delivers a stream follows its row."""

    def __init__(self, store: Store, source: str) -> None:
        self._store = store
        self._source = source
        self._replays = Replays(store)
        self._told_at = float("-inf")

    def tell_available(self, conn: Connection, now: float) -> None:
        """Say from when to when the log has everything, if it is time to."""
        if now < self._told_at + AVAILABLE_S:
            return
        found = available(Reader(self._store))
        if found is not None:
            self._told_at = now
            write_available(conn, self._source, to_time(found[0]), to_time(found[1]))

    def follow(self, conn: Connection, row: StreamRow) -> None:
        """Do what the row asks for next; raises StoreError if the log cannot be reached."""
        asked = ReplayColumns.of(row)
        taken = _TAKEN.match(asked.note or "")
        if taken is None:
            if asked.from_ts is not None:
                self._take(conn, row, asked.from_ts, asked.to_ts)
            return
        # In this order: what is over between the two has an outcome.
        current = self._replays.current(row.name)
        outcome = self._replays.outcome_of(row.name, taken[1])
        if outcome is not None:
            self._tell_outcome(conn, row, outcome)
            return
        if asked.from_ts is None:
            self._cancel(conn, row, taken[1], current)
        elif current is None or current.id != taken[1]:
            self._ask(conn, row, taken[1], asked.from_ts, asked.to_ts)
        else:
            self._tell_progress(conn, row, current)

    def _tell_outcome(self, conn: Connection, row: StreamRow, outcome: Outcome) -> None:
        """It is over. A window that was asked for since is the next wish, and stays."""
        asked = ReplayColumns.of(row)
        is_next = asked.from_ts is not None and not _is_of(outcome, asked.from_ts, asked.to_ts)
        window = (asked.from_ts, asked.to_ts) if is_next else (None, None)
        failpoint("replay.before_told")
        write_replay(conn, self._source, row, ReplayColumns(*window, None, _told(outcome)))
        failpoint("replay.after_told")

    def _take(
        self, conn: Connection, row: StreamRow, from_ts: Moment, to_ts: Moment | None
    ) -> None:
        now = _now(conn)
        try:
            until = min(_time(to_ts or now), now)
            request = self._request(row, from_ts, until, now)
        except ConfigError as error:
            self._refuse(conn, row, error)
            return
        note = _asked(row, request.id)
        if write_replay(conn, self._source, row, ReplayColumns(from_ts, until, 0.0, note)):
            failpoint("replay.after_note")
            # If there is another one, the next turn finds out, and refuses.
            with suppress(ConfigError):
                self._put(request)

    def _ask(
        self,
        conn: Connection,
        row: StreamRow,
        request_id: str,
        from_ts: Moment,
        to_ts: Moment | None,
    ) -> None:
        """Whoever took the id has died before it asked, or was refused."""
        now = _now(conn)
        try:
            self._put(self._request(row, from_ts, to_ts or now, now, request_id))
        except ConfigError as error:
            # There is another one, or somebody has changed the window since.
            self._refuse(conn, row, error)

    def _put(self, request: Request) -> None:
        self._replays.ask(request)
        failpoint("replay.after_ask")

    def _refuse(self, conn: Connection, row: StreamRow, error: ConfigError) -> None:
        note = f"refused: {error} ({error.hint})"
        write_replay(conn, self._source, row, ReplayColumns(None, None, None, note))

    def _cancel(
        self, conn: Connection, row: StreamRow, request_id: str, current: Request | None
    ) -> None:
        if current is not None and current.id == request_id:
            self._replays.cancel_request(current)
            note = _asked(row, request_id, "cancelled")
            write_replay(conn, self._source, row, replace(ReplayColumns.of(row), note=note))
        else:
            note = "cancelled before it began"
            write_replay(conn, self._source, row, ReplayColumns(None, None, None, note))

    def _tell_progress(self, conn: Connection, row: StreamRow, current: Request) -> None:
        """How far it is. A window that was changed while it runs is put back."""
        assert isinstance(current.since, int) and isinstance(current.until, int)
        window = to_time(current.since), to_time(current.until)
        is_same = window == (row.replay_from_ts, row.replay_to_ts)
        is_refused = not is_same or _REFUSED in (ReplayColumns.of(row).note or "")
        progress = self._replays.progress(row.name)
        trouble = [f"tried again: {progress.trouble}"] if progress and progress.trouble else []
        note = _asked(row, current.id, *[_REFUSED] * is_refused, *trouble)
        share = round(progress.share, 3) if progress is not None else 1.0
        write_replay(conn, self._source, row, ReplayColumns(*window, share, note))

    def _request(
        self,
        row: StreamRow,
        from_ts: Moment,
        until: Moment,
        now: datetime,
        request_id: str = "",
    ) -> Request:
        window = to_us(_time(from_ts)), to_us(_time(until))
        return Request.new(row.name, *window, now=now, via="sql", request_id=request_id)


def _now(conn: Connection) -> datetime:
    """By the clock that commits are told by."""
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def _asked(row: StreamRow, request_id: str, *said: str) -> str:
    """The note of one that is not over; it says so if nothing can come of it for now."""
    waits = []
    if row.paused:
        waits = ["waits until the stream is resumed"]
    elif row.status is Status.STOPPED:
        waits = ["waits until the stream is delivered again: it has stopped"]
    return "; ".join([f"asked as {request_id}", *said, *waits])


def _is_of(outcome: Outcome, from_ts: Moment, to_ts: Moment | None) -> bool:
    """Whether it is the outcome of this window."""
    if isinstance(from_ts, str) or isinstance(to_ts, str) or to_ts is None:
        return False
    return outcome.window == show_window(to_us(from_ts), to_us(to_ts))


def _time(moment: Moment) -> datetime:
    """Raises ConfigError if nothing can have been committed then."""
    if isinstance(moment, str):
        raise ConfigError(
            f"{moment} is not within the years 1 to 9999",
            hint="replay_from_ts = available_from_ts replays all that the log has",
        )
    return moment


def _told(outcome: Outcome) -> str:
    note = f"; {outcome.note}" if outcome.note else ""
    return f"{outcome.state}: {outcome.change_count} changes of {outcome.window}{note}"
