"""Removes what triggers need, of one source; and the schemas with the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from tailrace.control.schema import has_schema, remove
from tailrace.control.streams import delete_all, has_streams
from tailrace.control.tracking import forget, read_tracked, tracked_elsewhere
from tailrace.errors import SourceError
from tailrace.postgres.buffer import read_captures
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection
from tailrace.postgres.triggers import drop_buffer, drop_triggers, tables_with_triggers

LOCK_TIMEOUT_MS: Final = 200
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2


def remove_capture(conn: Connection, names: SourceNames, *, keep: Callable[[], None]) -> None:
    """Drop the triggers, buffers, streams and records of a source, and what is on no record at all;
    whatever was done before, it is done again. `keep` is called between tries. Raises SourceError
    that names who is in the way.
    """
    has_record = _is_there(conn, "tailrace.change_tracking")
    foreign = tracked_elsewhere(conn, names.slot) if has_record else set()
    for oid in sorted({*read_tracked(conn, names.slot), *read_captures(conn)} - foreign):
        # By their function: a dump that was restored has given the tables other oids.
        for table in tables_with_triggers(conn, oid):
            drop = partial(drop_triggers, conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS, of=oid)
            _insist(drop, keep)
        _insist(partial(drop_buffer, conn, oid, lock_timeout_ms=LOCK_TIMEOUT_MS), keep)
        if has_record:
            forget(conn, oid, source=names.slot)
    if has_streams(conn):
        delete_all(conn, names.slot)
    if has_schema(conn) and not (has_record and _is_used(conn)):
        remove(conn)


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
    query = "SELECT EXISTS (SELECT FROM tailrace.change_tracking)"
    if conn.execute(query).fetchone() == (True,):
        return True
    query = "SELECT EXISTS (SELECT FROM tailrace.streams)"
    return has_streams(conn) and conn.execute(query).fetchone() == (True,)
