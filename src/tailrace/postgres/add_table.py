"""Adds a table to the publication, so that no transaction is ever taken for whole that is not.

An empty table is added in one short transaction that first locks out its writers: no transaction is
seen in part, and what the table held before is known to be nothing. A table with rows needs a base.
That is taken as of a position before which every transaction that was open meanwhile has ended, so
no lock is needed, except where Postgres itself loses changes without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg

from tailrace.model import Lsn
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.publication import Fingerprint, fingerprint
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.table_lock import (
    lock_out_writers,
    must_be_unchanged,
    on_table,
    refusal,
)
from tailrace.postgres.table_shape import TableShape, read_shape

# Below these, ALTER PUBLICATION … ADD TABLE beside writers loses changes of that table
# (postgres commit 4909b38af03, "fix data loss in logical replication").
FIXED_MINOR: Final = {14: 18, 15: 13, 16: 9, 17: 5}


@dataclass(frozen=True, slots=True)
class EmptyTable:
    """A table that had no rows as of `position`, a WAL position of the server."""

    shape: TableShape
    position: Lsn
    ts_us: int


def adds_beside_writers(version_num: int) -> bool:
    """Whether Postgres streams all later changes of a table that is added while it is written."""
    major, minor = divmod(version_num, 10000)
    return minor >= FIXED_MINOR.get(major, 0)


def add_table(
    conn: Connection,
    publication: str,
    table: TableInfo,
    *,
    lock_timeout_ms: int,
    before_commit: Callable[[Fingerprint], None],
) -> EmptyTable | None:
    """Publish a table, and tell if it was empty; one with rows needs a base from now on.

    `before_commit` gets the fingerprint as it will be and makes it durable; the table's writers
    wait for it if they are locked out. If it raises, nothing has happened. If the session is lost
    while committing, the fingerprint tells afterwards whether the table was added. A lock not won
    within `lock_timeout_ms` is SourceError(retry=True) naming who has it.
    """
    try:
        is_locked = not (adds_beside_writers(conn.info.server_version) and holds_rows(conn, table))
        with conn.transaction():
            if is_locked:
                lock_out_writers(conn, table, lock_timeout_ms)
            # ONLY: the children of an inheritance tree are tables of their own.
            query = "ALTER PUBLICATION {} ADD TABLE ONLY {}"
            name = qualified(table.schema, table.name)
            conn.execute(statement(query, identifier(publication), name))
            # From here on nobody can alter the table.
            must_be_unchanged(conn, table)
            planned = fingerprint(conn, publication)
            assert planned is not None
            before_commit(planned)
            # Last, so that its position is not before one that was read until here.
            empty = empty_table(conn, table) if is_locked else None
        return empty
    except psycopg.Error as exc:
        raise refusal(conn, table, exc) from exc


def empty_table(conn: Connection, table: TableInfo) -> EmptyTable | None:
    """Under the lock: if the table has no rows, as of when. Who has written it before has released
    its lock, and so has ended, at or before the position that the server hands out now; who writes
    it later ends after that.
    """
    if holds_rows(conn, table):
        return None
    shape = read_shape(conn, table.oid)
    row = conn.execute(_NOW).fetchone()
    assert shape is not None and row is not None
    return EmptyTable(shape, Lsn.parse(row[0]), row[1])


_NOW: Final = """
SELECT pg_current_wal_insert_lsn()::text,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""


def holds_rows(conn: Connection, table: TableInfo) -> bool:
    """True if the table, or any partition of it, has a row that this session can see."""
    row = conn.execute(on_table("SELECT EXISTS (SELECT FROM {})", table)).fetchone()
    assert row is not None
    return bool(row[0])
