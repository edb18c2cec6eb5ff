"""Records of which the target does not take some: those are found, and put aside.

A batch that is refused is halved inside savepoints until each refused record stands alone; what is
good is taken in as large parts as can be. Records are tried in their order, and one whose lane is
parked meanwhile is put behind the one that parked it.

Of a row only its outcome in the batch is written, so one may come before another that it needs, or
that is still in its way: what a foreign key or a unique constraint refuses is tried again behind
the others, as long as that brings some of them in.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

import numpy as np
import psycopg

from tailrace.postgres.quote import qualified, statement
from tailrace.postgres.session import Connection
from tailrace.sinks.keys import Rows
from tailrace.sinks.postgres.records import Records
from tailrace.sinks.postgres.refusals import (
    is_by_other_rows,
    is_by_other_tables,
    is_refusal,
)
from tailrace.sinks.postgres.target import Target

_PRIMARY_KEY: Final = "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"

_DEFERRED: Final = """
SELECT n.nspname, c.conname FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace
WHERE c.conrelid = %s AND c.condeferred
"""

_REFERRING: Final = """
SELECT n.nspname, c.relname FROM pg_constraint f
JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class r ON r.oid = f.confrelid JOIN pg_namespace m ON m.oid = r.relnamespace
WHERE f.contype = 'f' AND f.conrelid <> f.confrelid
  AND (m.nspname, r.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))
"""

_ROUNDS_MAX: Final = 10
_LATER_MAX: Final = 1000
"""More than these are not tried again: each costs a savepoint in every round."""


class Aside(Protocol):
    """Where records go that the target does not get."""

    def free(self, records: Records, rows: Rows) -> Rows:
        """Those of some records that nothing waits before; the others are put aside."""
        ...

    def refuse(self, records: Records, at: int, error: psycopg.Error) -> None:
        """Put one aside that the target has refused; returns when that is durable."""
        ...


def write_apart(
    conn: Connection, target: Target, records: Records, aside: Aside, *, is_last: bool = True
) -> None:
    """Bring what the target takes into it, and put the rest aside. Raises as psycopg does if it is
    not the records that are refused; and if they are, unless this `is_last`, because of what other
    tables of the batch may still bring.
    """
    # What would be noticed by the COMMIT alone could not be told from the rest of the batch.
    conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
    key = _primary_key(conn, target)
    rows = np.arange(len(records.places))
    for _ in range(_ROUNDS_MAX):
        later = _round(conn, target, records, rows, aside, key, is_last=is_last)
        has_more = 0 < len(later) < len(rows)
        rows = np.array(sorted(later), dtype=np.int64)
        if not has_more:
            break
    if not is_last:
        for error in filter(is_by_other_tables, later.values()):
            raise error
    for at in rows:
        if len(aside.free(records, np.array([at]))):
            aside.refuse(records, int(at), later[int(at)])


def _round(
    conn: Connection,
    target: Target,
    records: Records,
    rows: Rows,
    aside: Aside,
    key: str,
    *,
    is_last: bool,
) -> dict[int, psycopg.Error]:
    """Settle some records, but for those that other rows may be the reason for, and what is behind
    them: by their places, why. Too many of those are refused; unless this `is_last`, not because of
    other tables, which is raised.
    """
    later: dict[int, psycopg.Error] = {}
    waiting = [rows]
    while waiting:
        rows = aside.free(records, waiting.pop())
        rows = _not_behind(records, rows, later)
        error = _tried(conn, target, records, rows, key) if len(rows) else None
        if error is None:
            continue
        at = int(rows[0])
        if len(rows) > 1:
            middle = len(rows) // 2
            waiting += [rows[middle:], rows[:middle]]
        elif is_by_other_rows(error) and not records.is_changes and len(later) < _LATER_MAX:
            later[at] = error
        elif is_by_other_tables(error) and not records.is_changes and not is_last:
            raise error
        else:
            aside.refuse(records, at, error)
    return later


def _not_behind(records: Records, rows: Rows, later: dict[int, psycopg.Error]) -> Rows:
    """Those of other lanes than what is to be tried again; the rest joins that."""
    if not later:
        return rows
    errors = {records.lane(at): error for at, error in later.items()}
    behind = {int(at): lane for at in rows if (lane := records.lane(int(at))) in errors}
    later |= {at: errors[lane] for at, lane in behind.items()}
    return rows[~np.isin(rows, list(behind))] if behind else rows


def referring(conn: Connection, places: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """By schema and name, the tables with a foreign key to one of these."""
    lists = ([schema for schema, _ in places], [name for _, name in places])
    return set(conn.execute(_REFERRING, lists).fetchall())


def check_at_once(conn: Connection, target: Target) -> None:
    """Let the target's own constraints be checked by each statement and not by the COMMIT."""
    for name in conn.execute(_DEFERRED, (target.oid,)).fetchall():
        conn.execute(statement("SET CONSTRAINTS {} IMMEDIATE", qualified(*name)))


def _tried(
    conn: Connection, target: Target, records: Records, rows: Rows, key: str
) -> psycopg.Error | None:
    """Why one of them at least is refused; None if they are all in the target."""
    records.stage(conn, target)
    try:
        with conn.transaction():
            records.write(conn, target, rows)
    except psycopg.Error as error:
        # That somebody else has put the same key says nothing about the record.
        if not is_refusal(error) or error.diag.constraint_name == key:
            raise
        return error
    return None


def _primary_key(conn: Connection, target: Target) -> str:
    row = conn.execute(_PRIMARY_KEY, (target.oid,)).fetchone()
    return str(row[0]) if row is not None else ""
