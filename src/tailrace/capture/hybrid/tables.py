"""Keeps the tables of a source that may be captured by triggers as well as from the WAL.

Each turn looks at every table that the configuration means, alone: what captures it now, what would
fit best, and one step from the one to the other. What fails is said and tried again; it never keeps
out another table. Only the leader does this, and what changes how a table is captured asks the
server, in its transaction, whether it still leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from tailrace.capture.buffers.shapes import BufferShapes
from tailrace.capture.drains.passed_marks import PassedMarks
from tailrace.capture.hybrid.handover import Handover
from tailrace.capture.hybrid.intake import TriggerIntake
from tailrace.capture.hybrid.on_record import Captured, OnRecord, Task
from tailrace.capture.hybrid.shadow import Shadow
from tailrace.capture.hybrid.tries import Tries
from tailrace.capture.hybrid.trouble import Trouble
from tailrace.capture.hybrid.upkeep import TriggerUpkeep
from tailrace.capture.hybrid.wanting import Means, Wanted, wanted_means
from tailrace.capture.membership import Membership, Refusal
from tailrace.capture.mending import mend
from tailrace.capture.modes import TableRules
from tailrace.capture.removal import take_out_one, why_out
from tailrace.capture.roll import Roll, buffer_roll, check_membership, rolls_of
from tailrace.capture.watch import Watch
from tailrace.control.schema import installed_version
from tailrace.control.tracking import Mode, Tracked, read_tracked
from tailrace.errors import NotLeading, SchemaError, SourceError
from tailrace.postgres.catalog import TableInfo, read_tables, tables_matching
from tailrace.postgres.detection import can_use_logical_replication
from tailrace.postgres.leading import must_lead
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.replica_identity import make_identifiable
from tailrace.postgres.session import Connection
from tailrace.storage import Store

logger = logging.getLogger(__name__)


class HybridTables:
    """One leader's view of them."""

    def __init__(self, store: Store, task: Task) -> None:
        self._store = store
        self._task = task
        self._rolls = rolls_of(task.names)
        self._watch = Watch(store, self._rolls)
        self._intake = TriggerIntake(store, task.names, task.leader_pid)
        self._upkeep = TriggerUpkeep(store, task.names, task.leader_pid)
        self._tries = Tries()
        self._handover = Handover(
            store, task.names, task.leader_pid, self._shadow, tries=self._tries
        )
        self._record = OnRecord(task)
        self._marks = PassedMarks(task.names.slot)
        self._trouble = Trouble(task.names.slot, task.leader_pid)

    @property
    def is_done(self) -> bool:
        """Whether the slot is of no use to any table any more."""
        return self._record.is_done

    def open(
        self, conn: Connection, *, should_go_on: Callable[[], bool]
    ) -> tuple[list[Refusal], int]:
        """Before capture begins: what is refused, and how many tables are captured."""
        if installed_version(conn):
            # Tables that an older version has taken up are judged by the functions of this one.
            self._intake.has_schema(conn)
        refusals = self._turn(conn, should_go_on, is_streaming=False)
        return refusals, len(self._look(conn).oids)

    def look_after(self, conn: Connection, *, should_go_on: Callable[[], bool]) -> list[Refusal]:
        """One turn; raises SourceGap if a publication is gone."""
        return self._turn(conn, should_go_on, is_streaming=self._task.has_slot)

    def _turn(
        self, conn: Connection, should_go_on: Callable[[], bool], *, is_streaming: bool
    ) -> list[Refusal]:
        task = self._task
        # First: its owner may not be able to update a table that was left there.
        self._handover.keep_shadows(conn)
        # Without a slot nothing depends on them, and they are made anew before one begins.
        if task.has_slot:
            self._mend(conn)
        self._let_go(conn, self._look(conn))
        # Anew: what was let go, as a partition, may be a table of its own again by now. It is taken
        # up like a new one; whoever still held it for captured would put its triggers back.
        captured = self._look(conn)
        self._handover.end_shadows_but(captured.transitioning)
        self._watch.look(
            conn,
            captured.oids,
            by_trigger=captured.by_trigger,
            transitioning=captured.transitioning,
        )
        refusals = []
        tables = tables_matching(conn, task.selection.patterns)
        for table in self._tries.begin_turn(tables, should_go_on):
            if not should_go_on():
                break
            refusal = self._step(conn, table, captured, is_streaming=is_streaming)
            if refusal is not None:
                refusals.append(refusal)
        confirmed = self._record.put(conn, self._look(conn))
        if confirmed is not None:
            self._marks.turn(conn, confirmed, should_go_on)
        return refusals

    def _mend(self, conn: Connection) -> None:
        for roll in self._rolls:
            mend(conn, self._store, roll)
        check_membership(conn, self._store, buffer_roll(self._task.names))

    def close(self) -> None:
        """Give up comparisons that are under way."""
        self._handover.close()

    def _shadow(self, table: TableInfo) -> Shadow:
        task = self._task
        shapes = BufferShapes(task.dsn)
        return Shadow(task.dsn, task.names, table, shapes, leader_pid=task.leader_pid)

    def _look(self, conn: Connection) -> Captured:
        members = {
            oid: roll
            for roll in self._rolls
            if fingerprint(conn, roll.publication) is not None
            for oid in Membership(conn, self._store, roll).member_oids()
        }
        return Captured(members, read_tracked(conn, self._task.names.slot))

    def _let_go(self, conn: Connection, captured: Captured) -> None:
        """Stop capturing what no pattern means any more, or what has become a partition: its rows
        come with its root.
        """
        selection = self._task.selection
        for table in read_tables(conn, captured.members):
            if not (table.is_table and selection.means(table)):
                roll = captured.members[table.oid]
                reason = why_out(conn, table, roll, selection)
                check = self._must_lead(conn)
                take_out_one(conn, self._store, roll, table, reason, check=check)
        living = {table.oid: table for table in read_tables(conn, captured.tracked)}
        for oid, tracked in captured.tracked.items():
            left = living.get(oid)
            if left is None or not (left.is_table and selection.means(left)):
                self._handover.end_shadow(oid)
                try:
                    self._upkeep.let_go(conn, tracked, left)
                except NotLeading:
                    raise
                except SourceError as error:
                    self._trouble.say(conn, oid, tracked.qualified, error)

    def _step(
        self, conn: Connection, table: TableInfo, captured: Captured, *, is_streaming: bool
    ) -> Refusal | None:
        """One table's step; None if there is nothing to say about it."""
        task, rules = self._task, self._task.hybrid.of(table)
        roll, tracked = captured.members.get(table.oid), captured.tracked.get(table.oid)
        by_trigger = tracked is not None and tracked.mode is not Mode.WAL
        is_captured = roll is not None or by_trigger
        wanted = self._wanted(conn, table, is_captured=is_captured, by_trigger=by_trigger)
        try:
            if wanted.means is Means.NOTHING and self._identify(conn, table, rules):
                table = next(iter(read_tables(conn, [table.oid])), table)
                wanted = self._wanted(conn, table, is_captured=is_captured, by_trigger=by_trigger)
            if roll is not None:
                self._published(conn, table, roll, wanted, tracked)
            elif tracked is not None and wanted.blocker is not None:
                # Now: its buffer may not be empty for long.
                self._handover.end_shadow(table.oid)
                self._upkeep.let_go(conn, tracked, table)
                return self._new(conn, table, wanted)
            elif tracked is None or not by_trigger:
                return self._new(conn, table, wanted)
            else:
                self._upkeep.mend(conn, table, tracked, rules)
                if is_streaming or not task.has_slot:
                    self._move(conn, table, tracked, wanted)
            self._trouble.is_over(conn, table.oid, tracked)
        except NotLeading:
            raise
        except (SourceError, SchemaError) as error:
            self._trouble.say(conn, table.oid, table.qualified, error)
        return None

    def _wanted(
        self, conn: Connection, table: TableInfo, *, is_captured: bool, by_trigger: bool
    ) -> Wanted:
        task = self._task
        return wanted_means(
            conn,
            table,
            task.hybrid.of(table),
            task.selection,
            has_slot=task.has_slot,
            is_captured=is_captured,
            by_trigger=by_trigger,
        )

    def _identify(self, conn: Connection, table: TableInfo, rules: TableRules) -> bool:
        """Whether the table was altered so that its rows can be told apart."""
        if not rules.auto_replica_identity or table.has_usable_identity:
            return False
        make_identifiable(conn, table, lock_timeout_ms=rules.lock_timeout_ms)
        logger.warning("table got replica identity full table=%s", table.qualified)
        return True

    def _new(self, conn: Connection, table: TableInfo, wanted: Wanted) -> Refusal | None:
        match wanted.means:
            case Means.WAL:
                membership = Membership(conn, self._store, self._roll(table))
                check = partial(self._may_publish, conn, table.oid)
                return membership.take_up_one(table, check=check)
            case Means.TRIGGER:
                return self._intake.take_up(conn, table, self._task.hybrid.of(table))
        assert wanted.blocker is not None
        # Where a slot can be had, one begins as soon as the tables have been looked at.
        is_passing = wanted.waits_for_slot and self._can_have_slot(conn)
        return Refusal(table, wanted.blocker.message, wanted.blocker.fix, is_passing=is_passing)

    def _may_publish(self, conn: Connection, oid: int) -> None:
        """Whoever led before may have put triggers on it when this turn had looked. He held the
        lock that we have by now.
        """
        self._must_lead(conn)()
        row = read_tracked(conn, self._task.names.slot).get(oid)
        if row is not None and row.mode is not Mode.WAL:
            raise SourceError("has triggers by now", retry=True)

    def _can_have_slot(self, conn: Connection) -> bool:
        return can_use_logical_replication(conn, self._task.names).can

    def _published(
        self,
        conn: Connection,
        table: TableInfo,
        roll: Roll,
        wanted: Wanted,
        tracked: Tracked | None,
    ) -> None:
        """A table that the WAL gives: left alone, unless it must not be published as it is."""
        rules, selection = self._task.hybrid.of(table), self._task.selection
        reason = why_out(conn, table, roll, selection)
        if tracked is not None and tracked.mode is not Mode.WAL:
            # First of all: a table that goes back notes up to where it came from the wal.
            self._handover.put_right(conn, table, roll)
        if wanted.means is Means.TRIGGER and self._intake.has_schema(conn):
            self._handover.go_back(conn, table, rules, roll)
        elif reason:
            check = self._must_lead(conn)
            is_out = take_out_one(conn, self._store, roll, table, reason, check=check)
            if is_out and tracked is not None:
                self._upkeep.let_go(conn, tracked, table)
        elif tracked is not None:
            # Else what triggers there are may be another source's.
            self._upkeep.tidy(conn, table)

    def _move(self, conn: Connection, table: TableInfo, tracked: Tracked, wanted: Wanted) -> None:
        """A table that triggers capture is handed over if the WAL can have it."""
        rules = self._task.hybrid.of(table)
        if wanted.means is Means.WAL:
            self._handover.advance(conn, table, tracked, rules, self._roll(table))
        elif tracked.mode is Mode.TRANSITIONING:
            reason = "triggers are to capture it" if self._task.has_slot else "there is no slot"
            self._handover.call_off(conn, table, reason)

    def _must_lead(self, conn: Connection) -> Callable[[], None]:
        return partial(must_lead, conn, self._task.names.slot, self._task.leader_pid)

    def _roll(self, table: TableInfo) -> Roll:
        whole, inserts = self._rolls
        return inserts if self._task.selection.is_inserts_only(table) else whole
