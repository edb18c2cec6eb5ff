"""Keeps triggers in force as long as they capture a table, and removes them when they do not.

A trigger that was dropped or disabled behind our back has left a gap, a sequence that hands out
numbers ahead has left rows out of order: it is put back first, and then a new base is asked for. A
buffer is dropped only when its table is captured by other means or gone, and nothing is left in it:
what is in it may not have reached the log.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import psycopg

from tailrace.capture.drains.pace import Pace
from tailrace.capture.drains.passed_rows import bytes_of
from tailrace.capture.modes import TableRules
from tailrace.capture.roll import buffer_roll, is_published, publish_buffer
from tailrace.capture.watch import keep_triggers, want_anew
from tailrace.control.tracking import (
    Mode,
    Tracked,
    clear_error,
    forget,
    read_tracked,
    set_error,
    tracked_elsewhere,
)
from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.buffer import buffer, read_buffers
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.leading import as_leader
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.quote import SourceNames, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.triggers import (
    drop_buffer,
    drop_triggers,
    has_triggers,
    install_triggers,
    restore_numbering,
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
        self._paces: dict[int, Pace] = defaultdict(Pace)

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
            with self._leading(conn):
                clear_error(conn, table.oid, error, source=self._names.slot)

    def _waits(self, oid: int) -> bool:
        """Whether a new base of the table is still due."""
        return oid in wanted_bases(self._store, newest_positions(self._store))

    def tidy(self, conn: Connection, table: TableInfo) -> None:
        """Remove what triggers have left of a table that the WAL gives now. Raises SourceError if
        it has gone back to triggers by now.
        """
        self._drop_triggers(conn, table, self._must_be_from_wal)
        self._drop_if_empty(conn, table.oid, whose=table)

    def let_go(self, conn: Connection, tracked: Tracked, table: TableInfo | None) -> None:
        """Remove the capture of a table that nobody means any more, or that is gone. What is left
        in its buffer reaches the log first.
        """
        if table is not None:
            self._drop_triggers(conn, table, self._must_be_ours)
        if self._drop_if_empty(conn, tracked.oid):
            with self._leading(conn):
                forget(conn, tracked.oid, source=self._names.slot)
            logger.warning("table let go table=%s", tracked.qualified)

    def _leading(self, conn: Connection) -> AbstractContextManager[None]:
        return as_leader(conn, self._names.slot, self._leader_pid)

    def _put_back(
        self, conn: Connection, table: TableInfo, rules: TableRules, problem: str
    ) -> None:
        barrier = Barrier(conn, self._names.slot, self._leader_pid, rules.lock_timeout_ms)
        roll = buffer_roll(self._names)
        with barrier.locked(table):
            self._must_be_by_trigger(conn, table)
            install_triggers(conn, table, lock_timeout_ms=rules.lock_timeout_ms)
            restore_numbering(conn, table.oid)
            keep_triggers(conn, self._store, table.oid)
            if fingerprint(conn, roll.publication) is not None:
                # It may be another buffer than the one that was published.
                publish_buffer(conn, self._store, roll, table.oid)
            # Before the commit: whoever dies after it leaves triggers at which nothing is to be
            # seen. Nobody writes the table between this position and the commit.
            want_anew(conn, self._store, table.oid, table.qualified, problem)
            set_error(conn, table.oid, problem + PUT_BACK, source=self._names.slot)
        failpoint("upkeep.after_put_back")

    def _drop_triggers(
        self, conn: Connection, table: TableInfo, check: Callable[[Connection, int], None]
    ) -> None:
        if has_triggers(conn, table.oid):
            with self._leading(conn):
                drop_triggers(conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS)
                check(conn, table.oid)

    def _must_be_ours(self, conn: Connection, oid: int) -> None:
        """Another source may have claimed the table since this turn has looked, under the lock that
        we have by now.
        """
        if oid in tracked_elsewhere(conn, self._names.slot):
            raise SourceError("another source has its triggers by now", retry=True)

    def _must_be_from_wal(self, conn: Connection, oid: int) -> None:
        """Whoever led before may have been about to commit when this turn has looked. He held the
        lock that we have by now.
        """
        self._must_be_ours(conn, oid)
        if self._has_triggers_by_now(conn, oid):
            raise SourceError("it has gone back to triggers by now", retry=True)

    def _must_be_by_trigger(self, conn: Connection, table: TableInfo) -> None:
        """As above: to put its triggers back would be to capture it twice."""
        if not self._has_triggers_by_now(conn, table.oid):
            raise SourceError(f"{table.qualified} was handed over by now", retry=True)

    def _has_triggers_by_now(self, conn: Connection, oid: int) -> bool:
        row = read_tracked(conn, self._names.slot).get(oid)
        is_by_trigger = row is not None and row.mode is not Mode.WAL
        return is_by_trigger and not is_published(conn, self._names, oid)

    def _drop_if_empty(self, conn: Connection, oid: int, *, whose: TableInfo | None = None) -> bool:
        """Whether the buffer is gone. `whose` is the table, if that must be from the WAL by now."""
        buffer_oid = read_buffers(conn).get(oid)
        if buffer_oid is None:
            return True
        pace = self._paces[oid]
        if not pace.is_due:
            return False
        with pace.looking(), self._leading(conn):
            is_dropped = self._is_dropped(conn, oid, whose)
        pace.rest(wanted_bytes=0, passed_bytes=bytes_of(conn, [buffer_oid]))
        return is_dropped

    def _is_dropped(self, conn: Connection, oid: int, whose: TableInfo | None) -> bool:
        try:
            with conn.transaction():
                setting = "SELECT set_config('lock_timeout', %s, true)"
                conn.execute(setting, (str(LOCK_TIMEOUT_MS),))
                if whose is not None:
                    # Nobody who reads or writes waits for this; whoever makes triggers does.
                    name = qualified(whose.schema, whose.name)
                    conn.execute(
                        statement("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE", name)
                    )
                    self._must_be_from_wal(conn, oid)
                # Whoever has written to it and is not done yet holds this up.
                conn.execute(statement("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", buffer(oid)))
                self._must_be_ours(conn, oid)
                query = statement("SELECT EXISTS (SELECT FROM {})", buffer(oid))
                if conn.execute(query).fetchone() != (False,):
                    return False
                drop_buffer(conn, oid, lock_timeout_ms=LOCK_TIMEOUT_MS)
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.UndefinedTable,
            SourceError,
        ):
            return False
        return True
