"""The columns of `tailrace.streams` in which replays are asked for and told of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tailrace.control.streams import Moment, StreamRow, reporting, sayable
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class ReplayColumns:
    """What a row says about replays: the window that is asked for, how far it is, and what was
    answered last.
    """

    from_ts: Moment | None
    to_ts: Moment | None
    progress: float | None = None
    note: str | None = None

    @classmethod
    def of(cls, row: StreamRow) -> ReplayColumns:
        """As the row has them."""
        progress, note = row.state["replay_progress"], row.state["replay_note"]
        return cls(
            row.replay_from_ts,
            row.replay_to_ts,
            progress if isinstance(progress, float) else None,
            note if isinstance(note, str) else None,
        )


_WRITE: Final = """
UPDATE tailrace.streams AS s
   SET replay_from_ts = %(from_ts)s, replay_to_ts = %(to_ts)s, replay_progress = %(progress)s,
       replay_note = %(note)s
  FROM (SELECT source, name FROM tailrace.streams
         WHERE source = %(source)s AND name = %(name)s
           AND replay_from_ts IS NOT DISTINCT FROM %(was_from_ts)s
           AND replay_to_ts IS NOT DISTINCT FROM %(was_to_ts)s
           AND replay_note IS NOT DISTINCT FROM %(was_note)s
           FOR NO KEY UPDATE SKIP LOCKED) AS found
 WHERE s.source = found.source AND s.name = found.name
RETURNING true
"""
_AVAILABLE: Final = """
UPDATE tailrace.streams AS s SET available_from_ts = %(first)s, available_to_ts = %(last)s
  FROM (SELECT source, name FROM tailrace.streams
         WHERE source = %(source)s
           AND (available_from_ts, available_to_ts) IS DISTINCT FROM (%(first)s, %(last)s)
           FOR NO KEY UPDATE SKIP LOCKED) AS found
 WHERE s.source = found.source AND s.name = found.name
"""


def write_replay(conn: Connection, source: str, row: StreamRow, new: ReplayColumns) -> bool:
    """Write them, unless somebody asks for something else meanwhile, answers or holds the row;
    whether they are written.
    """
    was = ReplayColumns.of(row)
    if new == was:
        return True
    values = {
        "source": source,
        "name": row.name,
        "was_from_ts": was.from_ts,
        "was_to_ts": was.to_ts,
        "was_note": was.note,
        "from_ts": new.from_ts,
        "to_ts": new.to_ts,
        "progress": new.progress,
        "note": None if new.note is None else sayable(new.note),
    }
    with reporting(conn):
        return conn.execute(_WRITE, values).fetchone() is not None


def write_available(conn: Connection, source: str, first: datetime, last: datetime) -> None:
    """From when to when the log of a source has everything."""
    with reporting(conn):
        conn.execute(_AVAILABLE, {"source": source, "first": first, "last": last})
