"""What the control schema has to show of each table: the views and the health check, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg.rows import class_row

from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class TableStat:
    """One row of `tailrace.stat_tables`. `buffered_rows` is an estimate if there are many."""

    table: str
    mode: str
    slot: str | None
    decoder_status: str
    lag_bytes: int | None
    lag_seconds: float | None
    confirmed: str | None
    buffered_rows: int
    oldest_buffered: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Health:
    """One row of `tailrace.check_cdc_health()`; `reason` is empty if nothing is wrong."""

    table: str
    mode: str
    lag_bytes: int | None
    lag_seconds: float | None
    confirmed: str | None
    reason: str


_STATS: Final = """
SELECT format('%%s.%%s', schema_name, table_name) AS "table", cdc_mode AS mode, slot_name AS slot,
       decoder_status, lag_bytes, lag_seconds, confirmed_lsn::text AS confirmed, buffered_rows,
       oldest_buffered, last_error
  FROM tailrace.stat_tables WHERE source = %s ORDER BY schema_name, table_name
"""

_HEALTH: Final = """
SELECT table_name AS "table", cdc_mode AS mode, lag_bytes, lag_seconds,
       confirmed_lsn::text AS confirmed, coalesce(reason, '') AS reason
  FROM tailrace.check_cdc_health(
           transition_max => make_interval(secs => %(transition_s_max)s),
           only_source => %(source)s, is_told => %(is_told)s)
"""

_IS_THERE: Final = """
SELECT EXISTS (SELECT FROM pg_proc
                WHERE pronamespace = to_regnamespace('tailrace')
                  AND proname = 'check_cdc_health' AND 'only_source' = ANY (proargnames))
"""


def read_stats(conn: Connection, source: str) -> list[TableStat]:
    """How each table of a source is captured, by name; none without the control schema."""
    row = conn.execute("SELECT to_regclass('tailrace.stat_tables') IS NULL").fetchone()
    if row == (True,):
        return []
    with conn.cursor(row_factory=class_row(TableStat)) as cursor:
        return cursor.execute(_STATS, (source,)).fetchall()


def check_health(
    conn: Connection, source: str, *, transition_s_max: float, is_told: bool
) -> list[Health]:
    """Every table of a source; none without the control schema, or if an older version has made it.
    A hand-over that takes longer than `transition_s_max` is stuck. Alerts are sent to whoever
    listens if they are to be told.
    """
    if conn.execute(_IS_THERE).fetchone() != (True,):
        return []
    values = {"source": source, "transition_s_max": transition_s_max, "is_told": is_told}
    with conn.cursor(row_factory=class_row(Health)) as cursor:
        return cursor.execute(_HEALTH, values).fetchall()
