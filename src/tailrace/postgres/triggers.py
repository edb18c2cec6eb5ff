"""The triggers that capture a table's changes into its buffer.

Writers of the table must not be harmed. What takes a lock takes it with a small timeout and raises
SourceError(retry=True), naming who is in the way. Enabling and disabling needs SHARE ROW EXCLUSIVE
and works beside readers; dropping needs ACCESS EXCLUSIVE, would kill by deadlock whoever has read
the table and then writes it, and so is done alone and later. Triggers are enabled ALWAYS: a session
with session_replication_role = replica is captured as well. On a partitioned table all this is done
at the root and recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.blockers import listed, lockers
from tailrace.postgres.buffer import buffer, capture_function, row_trigger, truncate_trigger
from tailrace.postgres.catalog import Kind, TableInfo, read_tables
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error
from tailrace.postgres.table_lock import below_deadlock_timeout, lock_whole

_MAKE_ROW: Final = (
    "CREATE TRIGGER {} AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION {}()"
)
_MAKE_TRUNCATE: Final = (
    "CREATE TRIGGER {} AFTER TRUNCATE ON {} FOR EACH STATEMENT EXECUTE FUNCTION {}()"
)
_FIRED_BY_ROWS: Final = 29
_FIRED_BY_TRUNCATE: Final = 32
"""In pg_trigger: bit 1 for each row, 4 insert, 8 delete, 16 update, 32 truncate."""

_HAS_SHAPES: Final = "SELECT to_regclass('tailrace.table_shapes') IS NOT NULL"

_FORGET_SHAPES: Final = """
DELETE FROM tailrace.table_shapes AS s
 WHERE s.table_oid = %(table)s::oid
   AND (NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = s.table_oid)
        OR s.shape < (SELECT max(shape) FROM tailrace.table_shapes WHERE table_oid = s.table_oid))
"""
"""The newest stays while the table is there: numbers go on from it, so none is given to two shapes,
of which a leader may remember the first."""


def install_triggers(conn: Connection, table: TableInfo, *, lock_timeout_ms: int) -> int:
    """Make the buffer, the function and the triggers, enabled, as far as they are not there; the
    number of the table's shape. A base must be read under a snapshot taken after this.
    """
    with _locking(conn, table, lock_timeout_ms):
        lock_table(conn, table)
        shape = _sync(conn, table)
        failpoint("triggers.after_buffer")
        there = {fired_by for fired_by, _ in _triggers(conn, table.oid)}
        for fired_by, name, query in (
            (_FIRED_BY_ROWS, row_trigger(table.oid), _MAKE_ROW),
            (_FIRED_BY_TRUNCATE, truncate_trigger(table.oid), _MAKE_TRUNCATE),
        ):
            if fired_by not in there:
                names = (identifier(name), _name(table), capture_function(table.oid))
                conn.execute(statement(query, *names))
        switch_triggers(conn, table, enabled=True)
        failpoint("triggers.before_commit")
        return shape


def sync_capture(conn: Connection, table: TableInfo, *, lock_timeout_ms: int) -> int:
    """Make buffer and function fit the table's columns; the number of its shape. Locks the buffer
    only if it lacks columns; until it is done, rows that do not fit are kept whole.
    """
    with _locking(conn, table, lock_timeout_ms):
        conn.execute(_on_table("LOCK TABLE {} IN ACCESS SHARE MODE", table))
        return _sync(conn, table)


def shape_is_current(conn: Connection, table_oid: int) -> bool:
    """Whether buffer and function fit the table's columns as they are now."""
    row = conn.execute("SELECT tailrace.capture_is_current(%s::oid)", (table_oid,)).fetchone()
    return row == (True,)


def lock_table(conn: Connection, table: TableInfo) -> None:
    """Lock out the writers of a table until the transaction ends; raises psycopg.Error."""
    conn.execute(_on_table("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", table))


def switch_triggers(conn: Connection, table: TableInfo, *, enabled: bool) -> None:
    """Enable ALWAYS or disable both triggers, on all partitions too; raises psycopg.Error.

    Part of a transaction that has locked the table: it is this that makes the switch exact.
    """
    how = "ENABLE ALWAYS" if enabled else "DISABLE"
    for _, name in _triggers(conn, table.oid):
        names = (_name(table), identifier(name))
        conn.execute(statement("ALTER TABLE {} " + how + " TRIGGER {}", *names))


def drop_triggers(
    conn: Connection, table: TableInfo, *, lock_timeout_ms: int, of: int | None = None
) -> None:
    """Drop both triggers if they are there; nothing else is locked meanwhile. Postgres would lock
    partitions before their table, each for itself: the table comes first, and lets nobody in. `of`
    is the oid by which its capture goes, if that is another.
    """
    for _, name in _triggers(conn, table.oid, of):
        with _locking(conn, table, lock_timeout_ms):
            lock_whole(conn, table, "ACCESS EXCLUSIVE", lock_timeout_ms)
            conn.execute(
                statement("DROP TRIGGER IF EXISTS {} ON {}", identifier(name), _name(table))
            )
        failpoint("triggers.after_drop")


def drop_buffer(conn: Connection, table_oid: int, *, lock_timeout_ms: int) -> None:
    """Drop the buffer, with all that is in it, the function and the shapes but the newest. The
    triggers are gone. A drain that is under way holds this up: SourceError(retry=True).
    """
    try:
        with conn.transaction():
            _limit_wait(conn, lock_timeout_ms)
            conn.execute(statement("DROP FUNCTION IF EXISTS {}()", capture_function(table_oid)))
            conn.execute(statement("DROP TABLE IF EXISTS {}", buffer(table_oid)))
            if conn.execute(_HAS_SHAPES).fetchone() == (True,):
                conn.execute(_FORGET_SHAPES, {"table": table_oid})
    except psycopg.errors.LockNotAvailable as error:
        raise SourceError(
            f"the buffer of table {table_oid} is in use: {listed(lockers(conn, table_oid))}",
            retry=True,
        ) from error
    except psycopg.Error as error:
        raise source_error(error) from error


def trigger_problems(conn: Connection, table_oid: int) -> list[str]:
    """What keeps the triggers from capturing every change in order, on the table and each
    partition; empty if all are there, on our function, and enabled always.
    """
    query = "SELECT * FROM tailrace.trigger_problems(%s::oid)"
    return [problem for (problem,) in conn.execute(query, (table_oid,))]


def restore_numbering(conn: Connection, table_oid: int) -> None:
    """Let the rows of the buffer be numbered in order, whatever someone has made of its sequence.
    Part of a transaction that has locked the table; raises psycopg.Error.
    """
    conn.execute("SELECT tailrace.restore_numbering(%s::oid)", (table_oid,))


def has_triggers(conn: Connection, table_oid: int) -> bool:
    """Whether the table itself has any trigger of ours, enabled or not."""
    return bool(_triggers(conn, table_oid))


def tables_with_triggers(conn: Connection, oid: int) -> list[TableInfo]:
    """The tables that the capture of this oid has triggers on: after a restore they have others."""
    query = """SELECT DISTINCT tgrelid::bigint FROM pg_trigger
                WHERE tgfoid = to_regprocedure(%s) AND tgparentid = 0"""
    function = capture_function(oid).as_string(conn) + "()"
    return read_tables(conn, [found for (found,) in conn.execute(query, (function,))])


def _triggers(conn: Connection, table_oid: int, of: int | None = None) -> list[tuple[int, str]]:
    """What fires the table's own triggers that call our function, and their names: whoever renames
    one does not switch it off.
    """
    query = """SELECT tgtype, tgname FROM pg_trigger
                WHERE tgrelid = %s AND tgfoid = to_regprocedure(%s) ORDER BY tgtype"""
    function = capture_function(table_oid if of is None else of).as_string(conn) + "()"
    return conn.execute(query, (table_oid, function)).fetchall()


def _sync(conn: Connection, table: TableInfo) -> int:
    row = conn.execute("SELECT tailrace.sync_capture(%s::oid)", (table.oid,)).fetchone()
    assert row is not None
    if row[0] is None:
        raise SourceError(f"{table.qualified} is gone", retry=True)
    return int(row[0])


@contextmanager
def _locking(conn: Connection, table: TableInfo, lock_timeout_ms: int) -> Iterator[None]:
    """A transaction that waits for locks so long and no longer."""
    try:
        with conn.transaction():
            _limit_wait(conn, lock_timeout_ms)
            yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        raise SourceError(
            f"{table.qualified} is in use: {listed(lockers(conn, table.oid))}",
            hint="it is tried again",
            retry=True,
        ) from error
    except psycopg.Error as error:
        raise source_error(error) from error


def _limit_wait(conn: Connection, lock_timeout_ms: int) -> None:
    wait_ms = below_deadlock_timeout(conn, lock_timeout_ms)
    conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(wait_ms),))


def _on_table(query: str, table: TableInfo) -> psycopg.sql.Composed:
    """The children of an inheritance tree are tables of their own."""
    if table.kind is not Kind.PARTITIONED:
        query = query.replace("{}", "ONLY {}")
    return statement(query, _name(table))


def _name(table: TableInfo) -> psycopg.sql.Identifier:
    return qualified(table.schema, table.name)
