"""A table locked against its writers for a moment, so that no transaction is seen in part.

The lock is SHARE ROW EXCLUSIVE: readers go on, and a writer that has read the table before cannot
be caught in a deadlock with us, because nothing that follows needs a stronger one. It is waited for
only briefly, since everyone who comes later waits behind us.

A table without partitions may be waited for beyond deadlock_timeout: who holds nothing yet stands
in no circle but that of a queue, which Postgres undoes by letting the others pass. But whoever has
written a partition by name, and came to its table while we waited for that, waits for us once we
have it, and we for him: when his deadlock_timeout is over, counted from when he came, Postgres ends
him. So a table and its partitions are waited for less than that, all together.
"""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.errors import NoProspect, SchemaError, SourceError
from tailrace.postgres.blockers import Blocker, listed, lockers
from tailrace.postgres.catalog import Kind, TableInfo, read_tables
from tailrace.postgres.quote import qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error

HELD_MS_MAX: Final = 10_000
"""How long we may hold up the writers of a table for work of ours; then the server rolls back."""


def lock_out_writers(
    conn: Connection, table: TableInfo, lock_timeout_ms: int, *, wait_ms: int | None = None
) -> None:
    """Inside a transaction, before anything else in it; raises psycopg.Error. The partitions of a
    table are locked with it. `wait_ms` is for this, if it may take longer than what follows.
    """
    query = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
    conn.execute(query, (str(HELD_MS_MAX),))
    lock_whole(conn, table, "SHARE ROW EXCLUSIVE", wait_ms or lock_timeout_ms)
    _set_lock_timeout(conn, lock_timeout_ms)


def lock_whole(conn: Connection, table: TableInfo, mode: str, wait_ms: int) -> None:
    """A table, and after it its partitions, in a transaction that holds no other; raises
    psycopg.Error. Where there are partitions so long is waited in all, and never until Postgres
    looks for deadlocks.
    """
    name = qualified(table.schema, table.name)
    if table.kind is not Kind.PARTITIONED:
        _set_lock_timeout(conn, wait_ms)
        conn.execute(statement(f"LOCK TABLE ONLY {{}} IN {mode} MODE", name))
        return
    wait_ms = below_deadlock_timeout(conn, wait_ms)
    _set_lock_timeout(conn, wait_ms)
    limit = "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %s, true)"
    before = conn.execute(limit, (str(wait_ms),)).fetchone()
    assert before is not None
    conn.execute(statement(f"LOCK TABLE {{}} IN {mode} MODE", name))
    conn.execute("SELECT set_config('statement_timeout', %s, true)", (before[0],))


def below_deadlock_timeout(conn: Connection, wait_ms: int) -> int:
    """So long, or half the time after which whoever waits for us looks for deadlocks, if that is
    less: a clock starts when he begins to wait, which he may do as soon as we do.
    """
    query = "SELECT greatest(1, setting::int / 2) FROM pg_settings WHERE name = 'deadlock_timeout'"
    row = conn.execute(query).fetchone()
    assert row is not None
    return min(wait_ms, int(row[0]))


def _set_lock_timeout(conn: Connection, wait_ms: int) -> None:
    conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(wait_ms),))


def must_end_soon(conn: Connection, table: TableInfo, wait_ms: int) -> None:
    """Before a transaction that waits so long for the lock. Raises NoProspect if whoever
    holds it has been at the same statement, or at none, for longer: that may last, and
    would hold up all who come later for nothing.
    """
    blockers = lockers(conn, table.oid)
    if any(each.still_s is not None and each.still_s * 1000 > wait_ms for each in blockers):
        raise _being_written(table, blockers, NoProspect)


def must_be_unchanged(conn: Connection, table: TableInfo) -> None:
    """Under the lock: raises SchemaError if the table is not what it was judged by."""
    if read_tables(conn, [table.oid]) != [table]:
        raise SchemaError(
            f"{table.qualified} was altered while it was being added", hint="try again", retry=True
        )


def refusal(conn: Connection, table: TableInfo, error: psycopg.Error) -> SourceError:
    """What an error of such a transaction means; a lock that was not won may be won next time."""
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
        return _being_written(table, lockers(conn, table.oid), SourceError)
    return source_error(error)


def _being_written(
    table: TableInfo, blockers: list[Blocker], kind: type[SourceError]
) -> SourceError:
    return kind(
        f"{table.qualified} is being written: {listed(blockers)}",
        hint="end or commit these transactions; the table is tried again",
        retry=True,
    )


def on_table(query: str, table: TableInfo) -> psycopg.sql.Composed:
    """The rows of a partitioned table are in its partitions, those of any other in itself."""
    if table.kind is not Kind.PARTITIONED:
        query = query.replace("{}", "ONLY {}")
    return statement(query, qualified(table.schema, table.name))
