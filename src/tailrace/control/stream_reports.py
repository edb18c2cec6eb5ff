"""What a pipeline tells about the streams that it delivers, in `tailrace.streams`.

A row that somebody has locked is left out until the next report: a pipeline waits for nobody here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from operator import add, sub
from typing import Final

from tailrace.control.streams import Status, reporting
from tailrace.control.tracking import Mode, read_tracked
from tailrace.model import Lsn
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import read_slot


@dataclass(frozen=True, slots=True)
class Tally:
    """What was delivered in how much time, how often that failed, how many messages a queue was
    sent once more, and how many changes were replayed, since some moment.
    """

    batch_count: int = 0
    change_count: int = 0
    failure_count: int = 0
    retry_count: int = 0
    batch_us: int = 0
    replayed_count: int = 0

    def plus(self, more: Tally) -> Tally:
        """Both together."""
        return Tally(*map(add, astuple(self), astuple(more)))

    def since(self, before: Tally) -> Tally:
        """What has come on top of `before`."""
        return Tally(*map(sub, astuple(self), astuple(before)))


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream as it is; None where that is not known, and then stays as it was."""

    name: str
    status: Status
    reason: str | None
    node: str
    epoch: int
    position: Lsn | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    dead_letter_count: int | None = None


def slot_is_lost(conn: Connection, source: str) -> bool:
    """Whether the slot is gone, or invalidated, while tables are still captured from it."""
    slot = read_slot(conn, source)
    if slot is not None:
        return slot.is_lost
    return any(each.mode is Mode.WAL for each in read_tracked(conn, source).values())


_PUT: Final = """
UPDATE tailrace.streams AS s
   SET status = %(status)s, reason = %(reason)s, node = %(node)s,
       epoch = greatest(s.epoch, %(epoch)s),
       "position" = coalesce(%(position)s::pg_lsn, s."position"),
       lag_bytes = coalesce(%(lag_bytes)s, s.lag_bytes),
       lag_seconds = coalesce(%(lag_seconds)s, s.lag_seconds),
       dead_letter_count = coalesce(%(dead_letter_count)s, s.dead_letter_count),
       batch_count = s.batch_count + %(batch_count)s,
       change_count = s.change_count + %(change_count)s,
       failure_count = s.failure_count + %(failure_count)s,
       replayed_count = s.replayed_count + %(replayed_count)s,
       reported_at = clock_timestamp()
  FROM (SELECT source, name FROM tailrace.streams
         WHERE source = %(source)s AND name = %(name)s AND NOT paused
           FOR NO KEY UPDATE SKIP LOCKED) AS free
 WHERE s.source = free.source AND s.name = free.name
RETURNING true
"""


def put_reports(
    conn: Connection, source: str, reports: Iterable[tuple[StreamReport, Tally]]
) -> set[str]:
    """Write reports; returns the names of the streams whose report has arrived."""
    arrived = set()
    with reporting(conn):
        for report, tally in reports:
            values = {**asdict(report), **asdict(tally), "source": source}
            values["position"] = None if report.position is None else str(report.position)
            if conn.execute(_PUT, values).fetchone() is not None:
                arrived.add(report.name)
    return arrived
