"""Takes a table up by triggers, so that none of its transactions is seen in part.

Triggers, buffer and the buffer's place in its publication come about in one transaction that locks
the table's writers out: whoever writes it later is recorded, whoever wrote it before is in the base
that is taken afterwards. If the table is empty, that base is nothing, and known at once.
"""

from __future__ import annotations

import logging

from tailrace.capture.membership import Refusal, put_empty_base
from tailrace.capture.modes import TableRules
from tailrace.capture.roll import buffer_roll, check_membership, is_published, publish_buffer
from tailrace.capture.watch import begin_watch
from tailrace.control.schema import installed_version, migrate
from tailrace.control.tracking import Mode, claim, set_mode
from tailrace.errors import NotLeading, SchemaError, SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.add_table import EmptyTable, empty_table
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection
from tailrace.postgres.triggers import install_triggers
from tailrace.storage import Store

logger = logging.getLogger(__name__)


class TriggerIntake:
    """One leader's."""

    def __init__(self, store: Store, names: SourceNames, leader_pid: int) -> None:
        self._store = store
        self._names = names
        self._leader_pid = leader_pid
        self._is_migrated = False

    def has_schema(self, conn: Connection) -> bool:
        """Whether the control schema is there and up to date; it is made if the role may."""
        try:
            self._migrate(conn)
        except SourceError as error:
            if error.retry:
                raise
            logger.warning("tables cannot be captured by triggers reason=%s", error)
            return False
        return True

    def _migrate(self, conn: Connection) -> None:
        # A teardown of another source may have removed it since.
        if not (self._is_migrated and installed_version(conn)):
            migrate(conn)
            self._is_migrated = True

    def take_up(self, conn: Connection, table: TableInfo, rules: TableRules) -> Refusal | None:
        """None if triggers capture the table from now on; else why not."""
        try:
            self._migrate(conn)
            empty = self._install(conn, table, rules)
        except NotLeading:
            raise
        except (SourceError, SchemaError) as error:
            return Refusal(table, str(error), error.hint, is_passing=error.retry)
        if empty is not None:
            failpoint("intake.before_empty_base")
            put_empty_base(self._store, empty)
        waiting = "" if empty is not None else " waiting_for=base"
        logger.info("table taken up by triggers table=%s%s", table.qualified, waiting)
        return None

    def _install(self, conn: Connection, table: TableInfo, rules: TableRules) -> EmptyTable | None:
        roll, source = buffer_roll(self._names), self._names.slot
        barrier = Barrier(conn, source, self._leader_pid, rules.lock_timeout_ms)
        has_roll = fingerprint(conn, roll.publication) is not None
        with barrier.locked(table):
            # Whoever led before may have done that when this turn had looked.
            if is_published(conn, self._names, table.oid):
                raise SourceError("is published by now", retry=True)
            claim(conn, table, source=source, mode=Mode.TRIGGER)
            install_triggers(conn, table, lock_timeout_ms=rules.lock_timeout_ms)
            set_mode(conn, table.oid, Mode.TRIGGER, source=source)
            if has_roll:
                publish_buffer(conn, self._store, roll, table.oid)
            begin_watch(conn, self._store, table.oid, by_trigger=True)
            empty = empty_table(conn, table)
        failpoint("intake.after_commit")
        if has_roll:
            check_membership(conn, self._store, roll)
        return empty
