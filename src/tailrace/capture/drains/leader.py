"""One leadership without a slot: triggers capture, and the leader drains what they have buffered.

Drains, and the beginning of a slot, are made by one thread, one after the other; tables and the log
are kept in order beside it. As soon as the WAL can be had, a slot begins where the last drain ended
and the leadership ends with that: the next one, on a replication session, streams.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from tailrace.capture.buffers.shapes import BufferShapes, InsertsOnlyTables, ask_for_base
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.drains.attach import Drained, attach_drains
from tailrace.capture.drains.drain import Drainer
from tailrace.capture.drains.passed_rows import buffers_of
from tailrace.capture.drains.slot_begin import begin_slot
from tailrace.capture.housekeeping import Housekeeping
from tailrace.capture.hybrid.on_record import Task
from tailrace.capture.hybrid.tables import HybridTables
from tailrace.capture.keeper import Keeper
from tailrace.capture.leader import JOIN_TIMEOUT_S, Settings, describing
from tailrace.capture.membership import refuse
from tailrace.capture.metrics import Metrics
from tailrace.capture.news import News
from tailrace.capture.origin import Attachment, drop_left_over
from tailrace.capture.roll import (
    buffer_roll,
    check_membership,
    remake_publications,
    rolls_of,
)
from tailrace.control.schema import migrate
from tailrace.control.tracking import Mode, forget, read_tracked, set_confirmed
from tailrace.errors import NotLeading, SourceError, SourceGap
from tailrace.failpoint import failpoint
from tailrace.log import Writer
from tailrace.log.bases import newest_positions
from tailrace.log.tip import Tip
from tailrace.log.wanted import SLOT_LOST, WantedBase, want_base
from tailrace.model import Lsn
from tailrace.postgres.buffer import read_buffers
from tailrace.postgres.detection import can_use_logical_replication
from tailrace.postgres.leading import as_leader, must_lead
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.publication import drop_publication
from tailrace.postgres.server import insert_position, read_server
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.snapshot import Patience
from tailrace.storage import Store

logger = logging.getLogger(__name__)

DETECT_INTERVAL_S: Final = 5.0
"""How often it is looked whether the WAL can be had."""

SLOT_TRY_MS: Final = 2_000
SLOT_WAIT_S: Final = 5.0
"""How long the making of a slot may wait for the transactions of others, while drains wait."""


class DrainLeader:
    """Owns the session that holds the lock."""

    def __init__(
        self,
        session: LockSession,
        settings: Settings,
        store: Store,
        *,
        metrics: Metrics,
        stop: threading.Event,
    ) -> None:
        self._session = session
        self._settings = settings
        self._duties = settings.duties
        self._store = store
        self._metrics = metrics
        self._stop = stop
        self._writer_id = secrets.token_hex(8)
        task = Task(
            self._duties.dsn,
            self._duties.names,
            self._duties.selection,
            self._duties.hybrid,
            leader_pid=session.pid,
            has_slot=False,
        )
        self._tables = HybridTables(store, task)
        self._news = News()
        self.left_behind: list[threading.Thread] = []

    def run(self, *, is_first: bool, on_streaming: Callable[[], None]) -> None:
        """Lead until told to stop, or until a slot has begun. `is_first` if nothing has been
        captured by this process yet: then a table that is refused may be an error. Raises
        TailraceError, psycopg.Error.
        """
        interval_s = self._settings.sender_timeout_s / 3
        try:
            self._metrics.is_leader.set(1)
            with Keeper(self._session, interval_s=interval_s) as keeper:

                def go_on() -> None:
                    keeper.renew()
                    if self._stop.is_set():
                        raise SourceError("told to stop", retry=True)

                with connect(self._duties.dsn) as conn:
                    drained = self._attach(conn, go_on, is_first=is_first)
                    on_streaming()
                    self._lead(conn, drained, go_on)
        finally:
            self._metrics.is_leader.set(0)
            self._session.close()

    def _attach(self, conn: Connection, go_on: Callable[[], None], *, is_first: bool) -> Drained:
        duties = self._duties

        def should_go_on() -> bool:
            go_on()
            return True

        to = Attachment(conn, self._store, duties.names, self._writer_id, go_on, with_buffers=True)
        drained = attach_drains(to)
        migrate(conn)
        if drained.has_lost_slot:
            self._let_go_of_slot(conn, drained.tip)
        # Beside a log that is drained, a slot is left from a beginning that died; or it is that of
        # the one who leads by now.
        must_lead(conn, duties.names.slot, self._session.pid)
        drop_left_over(to)
        if read_server(conn).may_create:
            buffers, pid = buffers_of(conn, duties.names.slot), self._session.pid
            remake_publications(conn, self._store, duties.names, buffers, leader_pid=pid)
        refusals, table_count = self._tables.open(conn, should_go_on=should_go_on)
        if is_first:
            refuse(duties.selection.patterns, refusals, member_count=table_count)
        return drained

    def _let_go_of_slot(self, conn: Connection, tip: Tip) -> None:
        """The slot is gone, and with it what it had not delivered. Tables that came from it are not
        captured any more: they are taken up by triggers like new ones, and each that was captured
        before gets a new base; so does one that went back to triggers when the log had not got
        there, and one whose base is ahead of the log. What triggers have buffered is all there.
        """
        names, era = self._duties.names, tip.source.era
        logger.warning("slot is gone, triggers take over slot=%s", names.slot)
        with as_leader(conn, names.slot, self._session.pid):
            for publication in (names.publication, names.inserts, names.buffers):
                drop_publication(conn, publication)
            position = Lsn.of(insert_position(conn), era=era)
            for tracked in read_tracked(conn, names.slot).values():
                until = tracked.wal_until
                is_behind = until is not None and Lsn.of(until, era=era) > tip.position
                if tracked.mode is Mode.WAL or is_behind:
                    want_base(self._store, WantedBase(tracked.oid, position, SLOT_LOST))
                # Else another source would take what is left in its buffer for its own.
                if tracked.mode is Mode.WAL and tracked.oid not in read_buffers(conn):
                    forget(conn, tracked.oid, source=names.slot)
            self._replace_bases(conn, tip)
        failpoint("slot.after_let_go")

    def _replace_bases(self, conn: Connection, tip: Tip, *, but: Lsn | None = None) -> None:
        """What a base shows that is ahead of the log, triggers may have buffered and the slot not
        delivered: drains bring it once more, after the base.
        """
        source, era = self._duties.names.slot, tip.source.era
        position = Lsn.of(insert_position(conn), era=era)
        newest = newest_positions(self._store)
        for oid in read_tracked(conn, source):
            base = newest.get(oid, tip.position)
            if base > tip.position and base != but:
                want_base(self._store, WantedBase(oid, position, SLOT_LOST))

    def _lead(self, conn: Connection, drained: Drained, go_on: Callable[[], None]) -> None:
        duties, tip = self._duties, drained.tip
        describe = describing(duties.dsn, self._store)
        writer = Writer(self._store, tip, writer_id=self._writer_id, describe=describe)
        inserts_only = InsertsOnlyTables(duties.dsn, duties.selection)
        translator = Translator(
            BufferShapes(duties.dsn),
            want_base=ask_for_base(duties.dsn, self._store),
            inserts_only=inserts_only,
        )
        housekeeping = Housekeeping(
            duties, self._store, self._tables, writer_id=self._writer_id, metrics=self._metrics
        )
        drains = Drainer(
            duties.dsn,
            self._store,
            TranslatingWriter(writer, translator),
            source=duties.names.slot,
            era=tip.source.era,
        )
        with closing(inserts_only), drains as drainer:
            header = drainer.drain(go_on, always=drained.has_lost_slot)
            if drained.has_lost_slot and header is not None:
                # Until now bases were taken as beside a slot, unless this drain has lent itself.
                self._replace_bases(conn, tip, but=header.end)
            try:
                housekeeping.start()
                self._drain(conn, drainer, housekeeping, go_on)
                # While we still lead, so that two do not keep house at once.
                housekeeping.stop(JOIN_TIMEOUT_S)
                if housekeeping.failure is not None:
                    raise housekeeping.failure
            finally:
                hung = housekeeping.stop(JOIN_TIMEOUT_S)
                self.left_behind = [hung] if hung is not None else []

    def _drain(
        self,
        conn: Connection,
        drainer: Drainer,
        housekeeping: Housekeeping,
        go_on: Callable[[], None],
    ) -> None:
        """Drain again and again; ends when told to stop, or when a slot has begun."""
        look_at = time.monotonic()
        while not self._stop.is_set() and housekeeping.failure is None:
            go_on()
            if drainer.pace.is_due:
                self._drain_once(conn, drainer, go_on)
            if time.monotonic() >= look_at:
                started = time.monotonic()
                if self._slot_has_begun(conn, drainer, go_on):
                    return
                # What a try has cost the drains is made up for before the next.
                look_at = 3 * time.monotonic() - 2 * started + DETECT_INTERVAL_S
            self._stop.wait(self._duties.hybrid.poll_interval_s)

    def _drain_once(self, conn: Connection, drainer: Drainer, go_on: Callable[[], None]) -> None:
        header = drainer.drain(go_on)
        self._metrics.drained(header)
        if header is not None:
            set_confirmed(conn, Lsn(header.end.wal), source=self._duties.names.slot)
        drainer.delete(go_on)

    def _slot_has_begun(
        self, conn: Connection, drainer: Drainer, go_on: Callable[[], None]
    ) -> bool:
        """Make the slot if the WAL can be had, and may be; drains wait meanwhile."""
        names = self._duties.names
        if not self._duties.hybrid.may_use_wal:
            return False
        ability = can_use_logical_replication(conn, names)
        if not ability.can:
            if self._news.is_new("ability", ability.why_not):
                logger.info("the wal cannot be had reason=%s", ability.why_not)
            return False
        try:
            for roll in (*rolls_of(names), buffer_roll(names)):
                check_membership(conn, self._store, roll)
        except SourceGap:
            # The right to make them may be new. The next leadership begins with making them.
            return True
        patience = Patience(SLOT_TRY_MS, SLOT_WAIT_S, self._say, go_on)
        try:
            pid = self._session.pid
            begin_slot(self._duties.dsn, drainer, names, patience, leader_pid=pid)
        except NotLeading:
            raise
        except SourceError as error:
            if not error.retry or self._stop.is_set():
                raise
            self._say(str(error))
            return False
        return True

    def _say(self, line: str) -> None:
        if self._news.is_new("slot", line):
            logger.warning("%s", line)
