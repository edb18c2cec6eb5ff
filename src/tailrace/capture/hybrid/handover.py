"""Moves tables from their triggers to the WAL, and back: TRIGGER, TRANSITIONING, WAL.

The barrier is one transaction that publishes the table, switches its triggers off and records the
mode. So whoever dies before it leaves a table whose triggers still capture it, and whoever dies
after it a table that the WAL gives: a table is never captured by both or by neither, and the next
leader reads from the catalog which it is. TRANSITIONING is only the wish; it has a time limit, and
falls back to TRIGGER once the triggers have been seen to be in force on every partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

from tailrace.capture.hybrid.shadow import Shadow
from tailrace.capture.hybrid.shadow_publication import withdraw_but
from tailrace.capture.hybrid.tries import Tries
from tailrace.capture.looks import last_look
from tailrace.capture.modes import TableRules
from tailrace.capture.roll import (
    Roll,
    buffer_roll,
    check_membership,
    is_published,
    publish_buffer,
    record_as_planned,
)
from tailrace.capture.watch import keep_triggers
from tailrace.control.tracking import Mode, Tracked, claim, set_mode
from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.leading import as_leader
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import read_slot
from tailrace.postgres.standing import Standing
from tailrace.postgres.trigger_traces import read_traces, were_switched
from tailrace.postgres.triggers import install_triggers, switch_triggers, trigger_problems
from tailrace.storage import Store

logger = logging.getLogger(__name__)

SHADOWS_MAX: Final = 4
"""So many tables are compared at a time: each needs a slot, and a server has ten by default."""


@dataclass(slots=True)
class Handover:
    """The hand-overs of one leader. `given_up` are tables that are left alone for a while, and
    until when; `shadows` the comparisons that are under way.
    """

    store: Store
    names: SourceNames
    leader_pid: int
    shadow: Callable[[TableInfo], Shadow]
    tries: Tries = field(default_factory=Tries)
    given_up: dict[int, float] = field(default_factory=dict)
    shadows: dict[int, Shadow] = field(default_factory=dict)

    def advance(
        self, conn: Connection, table: TableInfo, tracked: Tracked, rules: TableRules, roll: Roll
    ) -> None:
        """One turn on the way to the WAL; raises SourceError that says why it is not there yet."""
        if roll.inserts_only:
            # Nobody could update it while a publication carries its updates; without those the two
            # captures do not tell the same.
            rules = replace(rules, shadow_s=0.0)
        if tracked.mode is Mode.TRIGGER:
            if time.monotonic() < self.given_up.get(table.oid, 0.0):
                return
            if rules.shadow_s and len(self.shadows) >= SHADOWS_MAX:
                # Its turn has not come; its time does not run yet either.
                return
            if not self.tries.has_time(table.oid):
                return
            with as_leader(conn, self.names.slot, self.leader_pid):
                self._set_mode(conn, table, Mode.TRANSITIONING)
            failpoint("handover.after_transitioning")
            logger.info("hand-over begun table=%s", table.qualified)
        elif _age_s(conn, tracked) > rules.transition_timeout_s + rules.shadow_s:
            self.fall_back(conn, table, tracked.last_error or "it took too long", rules)
            return
        self._must_be_caught_up(conn, rules)
        if rules.shadow_s and not self._is_compared(conn, table, rules):
            return
        if not self.tries.has_time(table.oid):
            return
        self.pass_barrier(conn, table, rules, roll)
        self.end_shadow(table.oid)

    def close(self) -> None:
        """Leave nothing behind."""
        self.end_shadows_but(())

    def keep_shadows(self, conn: Connection) -> None:
        """Notice those that the server has ended, because nobody looked for long. What is compared
        stays published, and nothing else, whoever has left it there.
        """
        for oid in [oid for oid, shadow in self.shadows.items() if shadow.has_ended]:
            self.end_shadow(oid)
        withdraw_but(conn, self.names, self.shadows, leader_pid=self.leader_pid)

    def end_shadows_but(self, oids: Collection[int]) -> None:
        """End the comparisons of all tables but these: their slots would keep back WAL for ever."""
        for oid in self.shadows.keys() - set(oids):
            self.end_shadow(oid)

    def _is_compared(self, conn: Connection, table: TableInfo, rules: TableRules) -> bool:
        """Whether both captures have agreed for long enough; if they do not, it is given up."""
        shadow = self.shadows.get(table.oid)
        if shadow is None:
            if len(self.shadows) >= SHADOWS_MAX:
                return False
            shadow = self.shadows[table.oid] = self.shadow(table)
            logger.info("triggers and wal are compared table=%s", table.qualified)
        try:
            difference = shadow.look()
        except BaseException:
            self.end_shadow(table.oid)
            raise
        if difference:
            self.fall_back(conn, table, f"shadow differs: {difference}", rules)
        return not difference and time.monotonic() >= shadow.began + rules.shadow_s

    def end_shadow(self, oid: int) -> None:
        """End the comparison of a table, if there is one."""
        shadow = self.shadows.pop(oid, None)
        if shadow is not None:
            shadow.close()

    def fall_back(self, conn: Connection, table: TableInfo, reason: str, rules: TableRules) -> None:
        """Give the hand-over up, for a while; why is shown until it is tried again."""
        self._stay(conn, table, error=reason)
        self.given_up[table.oid] = time.monotonic() + rules.transition_timeout_s
        logger.warning("hand-over given up table=%s reason=%s", table.qualified, reason)

    def call_off(self, conn: Connection, table: TableInfo, reason: str) -> None:
        """End the hand-over, because it is not to be, or not from this server as it is: with its
        triggers the table is as it should be.
        """
        self._stay(conn, table, error=None)
        logger.info("hand-over called off table=%s reason=%s", table.qualified, reason)

    def _stay(self, conn: Connection, table: TableInfo, *, error: str | None) -> None:
        """With the triggers: nothing has been switched off, which is made sure of first."""
        self._must_be_in_force(conn, table, "stay with its triggers")
        self.end_shadow(table.oid)
        with as_leader(conn, self.names.slot, self.leader_pid):
            self._set_mode(conn, table, Mode.TRIGGER, error=error)
        failpoint("handover.after_fall_back")

    def _must_be_in_force(self, conn: Connection, table: TableInfo, what: str) -> None:
        problems = trigger_problems(conn, table.oid)
        if problems:
            raise SourceError(f"{table.qualified} cannot {what}: {problems[0]}")

    def go_back(self, conn: Connection, table: TableInfo, rules: TableRules, roll: Roll) -> None:
        """From the WAL to triggers, by the same barrier in the other direction; because the
        settings say so, hence without an error to show.
        """
        if not self.tries.has_time(table.oid):
            return
        buffers = buffer_roll(self.names)

        def go_once(wait_ms: int) -> None:
            barrier = self._barrier(conn, rules, wait_ms)
            failpoint("handover.before_back")
            with barrier.locked(table):
                # A table that went straight to the WAL may not be on record yet.
                claim(conn, table, source=self.names.slot, mode=Mode.WAL)
                install_triggers(conn, table, lock_timeout_ms=rules.lock_timeout_ms)
                keep_triggers(conn, self.store, table.oid)
                barrier.withdraw(roll.publication, table)
                publish_buffer(conn, self.store, buffers, table.oid)
                self._set_mode(conn, table, Mode.TRIGGER)
                barrier.tell(table, Mode.TRIGGER)
                record_as_planned(conn, self.store, roll)

        self.tries.often(go_once, lock_timeout_ms=rules.lock_timeout_ms)
        failpoint("handover.after_back")
        for each in (roll, buffers):
            check_membership(conn, self.store, each)
        logger.info("table went back to triggers table=%s", table.qualified)

    def put_right(self, conn: Connection, table: TableInfo, roll: Roll) -> None:
        """Set the row of a table that the WAL gives to say so, whatever a leader that came late has
        made of it. Raises SourceError if it came late itself, between looks at the publication and
        at the row: then the table has gone back, and would be published beside its triggers.
        """
        with as_leader(conn, self.names.slot, self.leader_pid):
            self._set_mode(conn, table, Mode.WAL, publication=roll.publication)
            # Only now: the row has been waited for.
            if not is_published(conn, self.names, table.oid):
                raise SourceError("it has gone back to triggers by now", retry=True)
        logger.warning("table is on record as it is again table=%s mode=WAL", table.qualified)

    def _must_be_caught_up(self, conn: Connection, rules: TableRules) -> None:
        slot = read_slot(conn, self.names.slot)
        if slot is None or slot.is_lost or not slot.is_active or slot.confirmed_flush_lsn is None:
            raise SourceError(f"nobody streams from slot {self.names.slot}", retry=True)
        lag_bytes = wal_position(conn) - slot.confirmed_flush_lsn
        if lag_bytes > rules.handover_lag_bytes_max:
            most = rules.handover_lag_bytes_max
            raise SourceError(f"the stream is more than {most} bytes behind", retry=True)

    def pass_barrier(
        self, conn: Connection, table: TableInfo, rules: TableRules, roll: Roll
    ) -> None:
        """From triggers to the WAL, in a few tries; raises SourceError if none came through."""
        # Before the lock, so that no writer waits for it: nobody else keeps one.
        look = last_look(self.store, table.oid)

        def pass_once(wait_ms: int) -> None:
            self._pass_once(self._barrier(conn, rules, wait_ms), table, roll, look)

        self.tries.often(pass_once, lock_timeout_ms=rules.lock_timeout_ms)
        failpoint("handover.after_barrier")
        check_membership(conn, self.store, roll)
        self.given_up.pop(table.oid, None)
        logger.info("table handed over to the wal table=%s", table.qualified)

    def _pass_once(
        self, barrier: Barrier, table: TableInfo, roll: Roll, look: Standing | None
    ) -> None:
        conn = barrier.conn
        failpoint("handover.before_barrier")
        with barrier.locked(table):
            # Whoever switched them off has left a gap, which nobody would see behind the barrier.
            self._must_be_in_force(conn, table, "be handed over")
            _must_be_as_seen(conn, table, look)
            barrier.publish(roll.publication, table)
            switch_triggers(conn, table, enabled=False)
            self._set_mode(conn, table, Mode.WAL, publication=roll.publication)
            barrier.tell(table, Mode.WAL)
            record_as_planned(conn, self.store, roll)

    def _barrier(self, conn: Connection, rules: TableRules, wait_ms: int) -> Barrier:
        return Barrier(conn, self.names.slot, self.leader_pid, rules.lock_timeout_ms, wait_ms)

    def _set_mode(
        self,
        conn: Connection,
        table: TableInfo,
        mode: Mode,
        *,
        publication: str | None = None,
        error: str | None = None,
    ) -> None:
        slot = self.names.slot
        set_mode(
            conn,
            table.oid,
            mode,
            source=slot,
            slot=None if mode is Mode.TRIGGER else slot,
            publication=publication,
            error=error,
        )


def _must_be_as_seen(conn: Connection, table: TableInfo, look: Standing | None) -> None:
    """The next look asks for a base, or finds that nothing is wrong; then it can be handed over."""
    known = None if look is None else look.triggers
    if known is None or were_switched(known, read_traces(conn, [table.oid])[table.oid]):
        raise SourceError(f"triggers of {table.qualified} were switched since the last look")


def _age_s(conn: Connection, tracked: Tracked) -> float:
    """For how long the hand-over has been under way, by the clock that has set its beginning."""
    query = "SELECT extract(epoch FROM clock_timestamp() - %s)::float8"
    row = conn.execute(query, (tracked.transition_started_at,)).fetchone()
    assert row is not None
    return float(row[0] or 0.0)
