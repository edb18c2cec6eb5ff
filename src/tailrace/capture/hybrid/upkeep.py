"""Keeps triggers in force as long as they capture a table, and removes them when they do not.

A trigger that was dropped or disabled behind our back has left a gap: it is put back first, and
then a new base is asked for. A buffer is dropped only when its table is captured by other means or
gone, and nothing is left in it: what is in it may not have reached the log.
"""

from __future__ import annotations

import logging
from typing import Final

import psycopg

from tailrace.capture.modes import TableRules
from tailrace.capture.watch import want_anew
from tailrace.control.tracking import Tracked, clear_error, forget, read_tracked, set_error
from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.buffer import buffer, read_buffers
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.quote import SourceNames, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.triggers import (
    drop_buffer,
    drop_triggers,
    has_triggers,
    install_triggers,
    shape_is_current,
    sync_capture,
    trigger_problems,
)
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 100
"""How long others may be made to wait for the removal of what is not needed any more."""

PUT_BACK: Final = "; it was put back, and a new base is due"
"""How an error ends that is over once there is that base."""


class TriggerUpkeep:
    """One leader's."""

    def __init__(self, store: Store, names: SourceNames, leader_pid: int) -> None:
        self._store = store
        self._names = names
        self._leader_pid = leader_pid

    def mend(self, conn: Connection, table: TableInfo, tracked: Tracked, rules: TableRules) -> None:
        """Put back what is missing of a table's triggers, and follow its columns."""
        problems = trigger_problems(conn, table.oid)
        if problems:
            self._put_back(conn, table, rules, problems[0])
        elif not shape_is_current(conn, table.oid):
            sync_capture(conn, table, lock_timeout_ms=rules.lock_timeout_ms)
            logger.info("capture follows the columns table=%s", table.qualified)
        error = tracked.last_error
        if not problems and error and error.endswith(PUT_BACK) and not self._waits(table.oid):
            clear_error(conn, table.oid, error, source=self._names.slot)

    def _waits(self, oid: int) -> bool:
        """Whether a new base of the table is still due."""
        return oid in wanted_bases(self._store, newest_positions(self._store))

    def tidy(self, conn: Connection, table: TableInfo) -> None:
        """Remove what triggers have left of a table that the WAL gives now."""
        if has_triggers(conn, table.oid):
            drop_triggers(conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._drop_if_empty(conn, table.oid)

    def let_go(self, conn: Connection, tracked: Tracked, table: TableInfo | None) -> None:
        """Remove the capture of a table that nobody means any more, or that is gone. What is left
        in its buffer reaches the log first.
        """
        if table is not None and has_triggers(conn, table.oid):
            drop_triggers(conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS)
        if self._drop_if_empty(conn, tracked.oid):
            forget(conn, tracked.oid, source=self._names.slot)
            logger.warning("table let go table=%s", tracked.qualified)

    def forget(self, conn: Connection, table: TableInfo) -> None:
        """A table that is not captured any more is not on record either."""
        if table.oid in read_tracked(conn, self._names.slot):
            forget(conn, table.oid, source=self._names.slot)

    def _put_back(
        self, conn: Connection, table: TableInfo, rules: TableRules, problem: str
    ) -> None:
        barrier = Barrier(conn, self._names.slot, self._leader_pid, rules.lock_timeout_ms)
        with barrier.locked(table):
            install_triggers(conn, table, lock_timeout_ms=rules.lock_timeout_ms)
            # Before the commit: whoever dies after it leaves triggers at which nothing is to be
            # seen. Nobody writes the table between this position and the commit.
            want_anew(conn, self._store, table.oid, table.qualified, problem)
            set_error(conn, table.oid, problem + PUT_BACK, source=self._names.slot)
        failpoint("upkeep.after_put_back")

    def _drop_if_empty(self, conn: Connection, oid: int) -> bool:
        """Whether the buffer is gone."""
        if oid not in read_buffers(conn):
            return True
        try:
            with conn.transaction():
                setting = "SELECT set_config('lock_timeout', %s, true)"
                conn.execute(setting, (str(LOCK_TIMEOUT_MS),))
                # Whoever has written to it and is not done yet holds this up.
                conn.execute(statement("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", buffer(oid)))
                query = statement("SELECT EXISTS (SELECT FROM {})", buffer(oid))
                if conn.execute(query).fetchone() != (False,):
                    return False
                drop_buffer(conn, oid, lock_timeout_ms=LOCK_TIMEOUT_MS)
        except (psycopg.errors.LockNotAvailable, SourceError):
            return False
        return True
