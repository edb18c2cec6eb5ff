"""Removes what triggers need, of one source; and the schemas with the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from tailrace.control.schema import installed_version, remove
from tailrace.control.streams import delete_all, has_streams
from tailrace.control.tracking import forget, read_tracked
from tailrace.errors import SourceError
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection
from tailrace.postgres.triggers import drop_buffer, drop_triggers

LOCK_TIMEOUT_MS: Final = 200
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2


def remove_capture(conn: Connection, names: SourceNames, *, keep: Callable[[], None]) -> None:
    """Drop the triggers, buffers, streams and records of a source; whatever was done before, it is
    done again. `keep` is called between tries. Raises SourceError that names who is in the way.
    """
    tracked = read_tracked(conn, names.slot)
    living = {table.oid: table for table in read_tables(conn, tracked)}
    for oid in tracked:
        table = living.get(oid)
        if table is not None:
            _insist(partial(drop_triggers, conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS), keep)
        _insist(partial(drop_buffer, conn, oid, lock_timeout_ms=LOCK_TIMEOUT_MS), keep)
        forget(conn, oid, source=names.slot)
    if has_streams(conn):
        delete_all(conn, names.slot)
    if installed_version(conn) and not _is_used(conn):
        remove(conn)


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
    query = "SELECT EXISTS (SELECT FROM tailrace.change_tracking)"
    if conn.execute(query).fetchone() == (True,):
        return True
    query = "SELECT EXISTS (SELECT FROM tailrace.streams)"
    return has_streams(conn) and conn.execute(query).fetchone() == (True,)
