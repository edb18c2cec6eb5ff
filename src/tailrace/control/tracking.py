"""How each table is captured: the rows of `tailrace.change_tracking`.

Only the leader writes them. A table has one row, however many streams read it: `tracked_by` names
them. It is that of the source whose triggers and buffer the table has, from their making to their
end; what comes from the WAL any number of sources may share, and the first of them is shown. The
row goes when the table is not to be captured any more. Every change of a mode is told by NOTIFY
tailrace_cdc_transition, to those who listen when it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from psycopg.rows import dict_row

from tailrace.errors import SourceError
from tailrace.model import Lsn
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.session import Connection

TRANSITION_CHANNEL: Final = "tailrace_cdc_transition"
ALERT_CHANNEL: Final = "tailrace_cdc_alert"


class Mode(StrEnum):
    """`tailrace.change_tracking.cdc_mode`."""

    TRIGGER = "TRIGGER"
    TRANSITIONING = "TRANSITIONING"
    WAL = "WAL"


@dataclass(frozen=True, slots=True)
class Tracked:
    """One row. `source` is the name of the slot that the source has, or would have; `wal_until` is
    set if the table went back to triggers: from there on they have its changes.
    """

    oid: int
    source: str
    schema: str
    name: str
    mode: Mode
    slot: str | None
    publication: str | None
    confirmed: Lsn | None
    wal_until: Lsn | None
    handed_over_at: datetime | None
    transition_started_at: datetime | None
    tracked_by: tuple[str, ...]
    last_error: str | None

    @property
    def qualified(self) -> str:
        """`schema.name` when the row was last written."""
        return f"{self.schema}.{self.name}"


_ROWS: Final = """
SELECT table_oid::bigint AS oid, source, schema_name AS schema, table_name AS name,
       cdc_mode AS mode, slot_name AS slot, publication_name AS publication,
       decoder_confirmed_lsn::text AS confirmed, to_jsonb(t) ->> 'wal_until' AS wal_until,
       handed_over_at, transition_started_at, tracked_by, last_error
  FROM tailrace.change_tracking AS t
 WHERE source = %s
 ORDER BY schema_name, table_name
"""
"""`wal_until` is not there before the leader has brought the schema up to date."""


def read_tracked(conn: Connection, source: str) -> dict[int, Tracked]:
    """The tables of a source, by oid; none if the control schema is not there."""
    row = conn.execute("SELECT to_regclass('tailrace.change_tracking') IS NULL").fetchone()
    if row == (True,):
        return {}
    with conn.cursor(row_factory=dict_row) as cursor:
        found = [_tracked(row) for row in cursor.execute(_ROWS, (source,))]
    return {tracked.oid: tracked for tracked in found}


_ELSEWHERE: Final = "SELECT table_oid::bigint FROM tailrace.change_tracking WHERE source <> %s"


def tracked_elsewhere(conn: Connection, source: str) -> set[int]:
    """The tables that are on record of other sources, by oid. The control schema must be there."""
    return {oid for (oid,) in conn.execute(_ELSEWHERE, (source,))}


_TRACK: Final = """
INSERT INTO tailrace.change_tracking AS t
       (table_oid, source, schema_name, table_name, cdc_mode)
VALUES (%(oid)s, %(source)s, %(schema)s, %(name)s, %(mode)s)
    ON CONFLICT (table_oid) DO UPDATE
   SET schema_name = excluded.schema_name, table_name = excluded.table_name,
       updated_at = clock_timestamp()
 WHERE t.source = excluded.source
RETURNING true
"""


def track(conn: Connection, table: TableInfo, *, source: str, mode: Mode) -> bool:
    """Note that a table is captured; one that is known keeps its mode and takes on its present
    name. False, and nothing is changed, if it is on record of another source.
    """
    values = {
        "oid": table.oid,
        "schema": table.schema,
        "name": table.name,
        "source": source,
        "mode": mode,
    }
    return conn.execute(_TRACK, values).fetchone() is not None


# Its buffer outlives the triggers of a table until it is empty.
_YIELD: Final = """
DELETE FROM tailrace.change_tracking
 WHERE table_oid = %(oid)s AND source <> %(source)s AND cdc_mode = 'WAL'
   AND to_regclass(format('tailrace_changes.changes_%%s', table_oid)) IS NULL
"""


def claim(conn: Connection, table: TableInfo, *, source: str, mode: Mode) -> None:
    """As `track`, before triggers are made: one that another source has from the WAL alone goes
    over to this one. Raises SourceError if another has its triggers, or still its buffer: that is
    emptied by one log.
    """
    conn.execute(_YIELD, {"oid": table.oid, "source": source})
    if not track(conn, table, source=source, mode=mode):
        raise SourceError(
            f"{table.qualified} is captured by triggers of another source of this database",
            hint="let one source capture it, and read its log twice",
        )


def describe(conn: Connection, table: TableInfo, readers: Sequence[str], *, source: str) -> None:
    """Note what a table is called now, and which streams read it."""
    query = """UPDATE tailrace.change_tracking
                  SET schema_name = %s, table_name = %s, tracked_by = %s,
                      updated_at = clock_timestamp()
                WHERE table_oid = %s AND source = %s"""
    conn.execute(query, (table.schema, table.name, list(readers), table.oid, source))


def forget(conn: Connection, oid: int, *, source: str) -> None:
    """Delete the row of a table whose capture is removed."""
    query = "DELETE FROM tailrace.change_tracking WHERE table_oid = %s AND source = %s"
    conn.execute(query, (oid, source))


_SET_MODE: Final = """
UPDATE tailrace.change_tracking
   SET cdc_mode = %(mode)s,
       slot_name = %(slot)s,
       publication_name = %(publication)s,
       transition_started_at =
           CASE WHEN %(mode)s = 'TRANSITIONING'
                THEN coalesce(transition_started_at, clock_timestamp()) END,
       handed_over_at =
           CASE WHEN %(mode)s = 'WAL' THEN clock_timestamp()
                WHEN %(mode)s = 'TRANSITIONING' THEN handed_over_at END,
       wal_until =
           CASE WHEN cdc_mode = 'WAL' AND %(mode)s = 'TRIGGER' THEN pg_current_wal_insert_lsn()
                ELSE wal_until END,
       last_error = %(error)s,
       updated_at = clock_timestamp()
 WHERE table_oid = %(oid)s AND source = %(source)s
"""


def set_mode(
    conn: Connection,
    oid: int,
    mode: Mode,
    *,
    source: str,
    slot: str | None = None,
    publication: str | None = None,
    error: str | None = None,
) -> None:
    """Note the mode of a table; in the same transaction as what brings it about. `error` says why,
    if it is not what was wanted.
    """
    values = {
        "oid": oid,
        "mode": mode,
        "source": source,
        "slot": slot,
        "publication": publication,
        "error": error,
    }
    conn.execute(_SET_MODE, values)


def set_error(conn: Connection, oid: int, error: str | None, *, source: str) -> None:
    """Note what went wrong last with a table, or that nothing is wrong."""
    query = """UPDATE tailrace.change_tracking SET last_error = %s, updated_at = clock_timestamp()
                WHERE table_oid = %s AND source = %s AND last_error IS DISTINCT FROM %s"""
    conn.execute(query, (error, oid, source, error))


def clear_error(conn: Connection, oid: int, error: str, *, source: str) -> None:
    """Note that this is not wrong with a table any more; what else is wrong by now stays."""
    query = """UPDATE tailrace.change_tracking SET last_error = NULL, updated_at = clock_timestamp()
                WHERE table_oid = %s AND source = %s AND last_error = %s"""
    conn.execute(query, (oid, source, error))


def set_confirmed(conn: Connection, position: Lsn, *, source: str) -> None:
    """Note how far the durable log has got, on every table of the source that is not there yet;
    `position` is the server's own."""
    query = """UPDATE tailrace.change_tracking
                  SET decoder_confirmed_lsn = %(lsn)s::pg_lsn, updated_at = clock_timestamp()
                WHERE source = %(source)s
                  AND decoder_confirmed_lsn IS DISTINCT FROM %(lsn)s::pg_lsn"""
    conn.execute(query, {"lsn": str(position), "source": source})


def _tracked(row: dict[str, Any]) -> Tracked:
    row["mode"] = Mode(row["mode"])
    for position in ("confirmed", "wal_until"):
        row[position] = None if row[position] is None else Lsn.parse(row[position])
    row["tracked_by"] = tuple(row["tracked_by"])
    return Tracked(**row)
