"""Keeps the tables of a source that is captured from the WAL alone.

It needs no schema of ours in the database; where there is one, for streams that SQL can see, the
tables are shown there too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tailrace.capture.hybrid.on_record import Captured, OnRecord, Task
from tailrace.capture.membership import Membership, Refusal
from tailrace.capture.mending import mend
from tailrace.capture.news import News
from tailrace.capture.removal import take_out
from tailrace.capture.roll import rolls_of
from tailrace.capture.watch import Watch
from tailrace.control.schema import installed_version, latest_version, migrate
from tailrace.control.tracking import Mode, forget, read_tracked
from tailrace.errors import SourceError
from tailrace.postgres.leading import as_leader
from tailrace.postgres.session import Connection
from tailrace.storage import Store

logger = logging.getLogger(__name__)


class WalTables:
    """One leader's view of them."""

    is_done = False

    def __init__(self, store: Store, task: Task) -> None:
        self._store = store
        self._task = task
        self._rolls = rolls_of(task.names)
        self._selection = task.selection
        self._record = OnRecord(task)
        self._watch = Watch(store, self._rolls)
        self._news = News()

    def open(
        self, conn: Connection, *, should_go_on: Callable[[], bool]
    ) -> tuple[list[Refusal], int]:
        """Before the stream begins: what is refused, and how many tables are captured."""
        refusals, member_count = [], 0
        for roll in self._rolls:
            mend(conn, self._store, roll)
            take_out(conn, self._store, roll, self._selection, should_go_on=should_go_on)
        for roll in self._rolls:
            membership = Membership(conn, self._store, roll)
            refusals += membership.take_up(self._selection, should_go_on=should_go_on)
            member_count += len(membership.member_oids())
        return refusals, member_count

    def look_after(self, conn: Connection, *, should_go_on: Callable[[], bool]) -> list[Refusal]:
        """Now and then while streaming; raises SourceGap if a publication is gone."""
        refusals = []
        for roll in self._rolls:
            mend(conn, self._store, roll)
            take_out(conn, self._store, roll, self._selection, should_go_on=should_go_on)
        memberships = [Membership(conn, self._store, roll) for roll in self._rolls]
        self._watch.look(conn, [oid for each in memberships for oid in each.member_oids()])
        for membership in memberships:
            refusals += membership.take_up(self._selection, should_go_on=should_go_on)
        self._put_on_record(conn)
        return refusals

    def _has_schema(self, conn: Connection) -> bool:
        """Whether tables can be shown; what an older version has made is brought up to date."""
        version = installed_version(conn)
        if 0 < version < latest_version():
            try:
                migrate(conn)
            except SourceError as error:
                if error.retry:
                    raise
                if self._news.is_new("schema", str(error)):
                    logger.warning("tables cannot be shown in sql reason=%s", error)
                return False
        return version > 0

    def _put_on_record(self, conn: Connection) -> None:
        if not self._has_schema(conn):
            return
        members = {
            oid: roll
            for roll in self._rolls
            for oid in Membership(conn, self._store, roll).member_oids()
        }
        source = self._task.names.slot
        tracked = read_tracked(conn, source)
        left = [
            oid for oid, each in tracked.items() if each.mode is Mode.WAL and oid not in members
        ]
        for oid in left:
            with as_leader(conn, source, self._task.leader_pid):
                forget(conn, oid, source=source)
            del tracked[oid]
        self._record.put(conn, Captured(members, tracked))

    def close(self) -> None:
        """There is nothing to give up."""
