"""Removes what triggers need, of one source; and the schemas with the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import psycopg

from tailrace.control.schema import has_schema, remove
from tailrace.control.streams import delete_all, has_streams
from tailrace.control.tracking import forget, read_tracked, tracked_elsewhere
from tailrace.errors import SourceError
from tailrace.postgres.buffer import read_captures
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.quote import SourceNames, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error
from tailrace.postgres.triggers import drop_buffer, drop_triggers, tables_with_triggers

LOCK_TIMEOUT_MS: Final = 200
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2
_RECORD: Final = "tailrace.change_tracking"
_STREAMS: Final = "tailrace.streams"


def remove_capture(conn: Connection, names: SourceNames, *, keep: Callable[[], None]) -> None:
    """Drop the triggers, buffers, streams and records of a source, and what is on no record at all;
    whatever was done before, it is done again. `keep` is called between tries. Raises SourceError,
    which names who is in the way at a table.
    """
    try:
        _remove_capture(conn, names, keep)
    except psycopg.errors.UndefinedTable:
        # Another source was the last, and has removed the schemas while this one looked.
        _remove_capture(conn, names, keep)


def _remove_capture(conn: Connection, names: SourceNames, keep: Callable[[], None]) -> None:
    has_record = _is_there(conn, _RECORD)
    foreign = tracked_elsewhere(conn, names.slot) if has_record else set()
    for oid in sorted({*read_tracked(conn, names.slot), *read_captures(conn)} - foreign):
        # By their function: a dump that was restored has given the tables other oids.
        for table in tables_with_triggers(conn, oid):
            _insist(partial(_drop_triggers, conn, table, oid, names.slot), keep)
        _insist(partial(_drop_buffer, conn, oid, names.slot), keep)
    if has_streams(conn):
        delete_all(conn, names.slot)
    if has_schema(conn):
        _insist(partial(remove, conn, unless=partial(_is_used, conn)), keep)


def _drop_triggers(conn: Connection, table: TableInfo, oid: int, source: str) -> None:
    with conn.transaction():
        drop_triggers(conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS, of=oid)
        _must_not_be_foreign(conn, oid, source)


def _drop_buffer(conn: Connection, oid: int, source: str) -> None:
    """With the row on record. Whoever takes a table up waits meanwhile, nobody else does."""
    try:
        with conn.transaction():
            _lock(conn, _RECORD, "SHARE ROW EXCLUSIVE")
            _must_not_be_foreign(conn, oid, source)
            drop_buffer(conn, oid, lock_timeout_ms=LOCK_TIMEOUT_MS)
            if _is_there(conn, _RECORD):
                forget(conn, oid, source=source)
    except psycopg.Error as error:
        raise source_error(error) from error


def _must_not_be_foreign(conn: Connection, oid: int, source: str) -> None:
    """All comes to nothing if another source has taken the table up since it was looked at. Asked
    under a lock, of the table or of what is on record, for which whoever takes it up has to wait,
    or has made us wait.
    """
    if _is_there(conn, _RECORD) and oid in tracked_elsewhere(conn, source):
        raise psycopg.Rollback


def _is_there(conn: Connection, relation: str) -> bool:
    row = conn.execute("SELECT to_regclass(%s) IS NOT NULL", (relation,)).fetchone()
    return row == (True,)


def _insist(act: Callable[[], None], keep: Callable[[], None]) -> None:
    """A lock that others hold is free a moment later, as a rule."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except SourceError as error:
            if not error.retry or time.monotonic() >= deadline:
                raise
        keep()
        time.sleep(_PAUSE_S)


def _is_used(conn: Connection) -> bool:
    """By another source. Whoever seems to be the last locks all others out, and asks again: none
    begins until the transaction is over.
    """
    if _has_rows(conn):
        return True
    for relation in (_RECORD, _STREAMS):
        _lock(conn, relation, "ACCESS EXCLUSIVE")
    return _has_rows(conn)


def _has_rows(conn: Connection) -> bool:
    for relation in (_RECORD, _STREAMS):
        if _is_there(conn, relation):
            query = statement("SELECT EXISTS (SELECT FROM {})", qualified(*relation.split(".")))
            if conn.execute(query).fetchone() == (True,):
                return True
    return False


def _lock(conn: Connection, relation: str, mode: str) -> None:
    """Until the transaction ends nobody else writes to it, if it is there."""
    if _is_there(conn, relation):
        conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(LOCK_TIMEOUT_MS),))
        name = qualified(*relation.split("."))
        conn.execute(statement(f"LOCK TABLE {{}} IN {mode} MODE", name))
