"""Records of which the target does not take some: those are found, and put aside.

A batch that is refused is halved inside savepoints until each refused record stands alone; what is
good is taken in as large parts as can be. Records are tried in their order, and one whose lane is
parked meanwhile is put behind the one that parked it.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import psycopg

from tailrace.postgres.quote import qualified, statement
from tailrace.postgres.session import Connection
from tailrace.sinks.keys import Rows
from tailrace.sinks.postgres.records import Records
from tailrace.sinks.postgres.refusals import is_refusal
from tailrace.sinks.postgres.target import Target

_PRIMARY_KEY: Final = "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"

_DEFERRED: Final = """
SELECT n.nspname, c.conname FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace
WHERE c.conrelid = %s AND c.condeferred
"""


class Aside(Protocol):
    """Where records go that the target does not get."""

    def free(self, records: Records, rows: Rows) -> Rows:
        """Those of some records that nothing waits before; the others are put aside."""
        ...

    def refuse(self, records: Records, at: int, error: psycopg.Error) -> None:
        """Put one aside that the target has refused; returns when that is durable."""
        ...


def write_apart(conn: Connection, target: Target, records: Records, aside: Aside) -> None:
    """Bring what the target takes into it, and put the rest aside. Raises as psycopg does if it is
    not the records that are refused.
    """
    # What would be noticed by the COMMIT alone could not be told from the rest of the batch.
    conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
    key = _primary_key(conn, target)
    waiting = [np.arange(len(records.places))]
    while waiting:
        rows = aside.free(records, waiting.pop())
        error = _tried(conn, target, records, rows, key) if len(rows) else None
        if error is None:
            continue
        if len(rows) == 1:
            aside.refuse(records, int(rows[0]), error)
            continue
        middle = len(rows) // 2
        waiting += [rows[middle:], rows[:middle]]


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
