"""One leadership: from the lock won until its connection ends, fails, or is told to stop.

The session that holds the lock is closed before anything else is waited for: a server that shuts
down waits for it, and so does whoever is to lead next.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg

from tailrace.capture.actions import Limits
from tailrace.capture.attach import attach, check_gap
from tailrace.capture.buffers.shapes import BufferShapes, InsertsOnlyTables, ask_for_base
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.core import Core
from tailrace.capture.footing import carries_buffers
from tailrace.capture.housekeeping import Duties, Housekeeping, Tables, observe_retained
from tailrace.capture.hybrid.on_record import Task
from tailrace.capture.hybrid.tables import HybridTables
from tailrace.capture.hybrid.wanting import foresee_refusals
from tailrace.capture.keeper import Keeper
from tailrace.capture.looks import keep_shapes
from tailrace.capture.membership import refuse
from tailrace.capture.metrics import Metrics
from tailrace.capture.news import News
from tailrace.capture.origin import Attachment
from tailrace.capture.roll import rolls_of
from tailrace.capture.slot_end import EndedStream
from tailrace.capture.strays import Strays
from tailrace.capture.streaming import Streaming
from tailrace.capture.wal_tables import WalTables
from tailrace.capture.writing import WritingThread
from tailrace.errors import SourceError
from tailrace.log import Tip, Writer, read_genesis
from tailrace.log.relations import Describe
from tailrace.model import Relation
from tailrace.postgres.description import describe
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.replication import SENDER_TIMEOUT_S, ReplicationConnection
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.slot import read_slot
from tailrace.storage import Store

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S: Final = 5.0
_START_INTERVAL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    """What capture is told. `sender_timeout_s` is how long a lost leader's lock stays taken; at
    least three times the interval of status.
    """

    duties: Duties
    limits: Limits = field(default_factory=Limits)
    sender_timeout_s: int = SENDER_TIMEOUT_S


class Leader:
    """Owns the connection that holds the lock."""

    def __init__(
        self,
        connection: ReplicationConnection,
        settings: Settings,
        store: Store,
        *,
        metrics: Metrics,
        stop: threading.Event,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._duties = settings.duties
        self._store = store
        self._metrics = metrics
        self._stop = stop
        self._publications = [roll.publication for roll in rolls_of(self._duties.names)]
        self._task = Task(
            self._duties.dsn,
            self._duties.names,
            self._duties.selection,
            self._duties.hybrid,
            leader_pid=connection.pid,
            has_slot=True,
        )
        self._tables: Tables = WalTables(store, self._task)
        self._writer_id = secrets.token_hex(8)
        self.left_behind: list[threading.Thread] = []

    def run(self, *, is_first: bool, on_streaming: Callable[[], None]) -> None:
        """Lead. `is_first` if nothing has been captured by this process yet: then a table that is
        refused may be an error. Raises TailraceError, psycopg.Error.
        """
        try:
            self._metrics.is_leader.set(1)
            with connect(self._duties.dsn) as conn:
                tip = self._attach(conn, is_first=is_first)
                self._start(conn, tip)
            on_streaming()
            self._stream(tip)
        finally:
            self._metrics.is_leader.set(0)
            self._connection.close()

    def _attach(self, conn: Connection, *, is_first: bool) -> Tip:
        duties = self._duties
        with Keeper(self._connection, interval_s=self._settings.sender_timeout_s / 3) as keeper:

            def go_on() -> None:
                keeper.renew()
                self._check_stop()

            def should_go_on() -> bool:
                go_on()
                return True

            to = Attachment(
                conn,
                self._store,
                duties.names,
                self._writer_id,
                go_on,
                with_buffers=duties.hybrid.may_use_triggers,
                before_slot=lambda: foresee_refusals(conn, duties.selection, duties.hybrid),
            )
            tip = attach(to)
            self._take_in_buffers_if_it_can()
            refusals, member_count = self._tables.open(conn, should_go_on=should_go_on)
            if is_first:
                refuse(duties.selection.patterns, refusals, member_count=member_count)
        return tip

    def _take_in_buffers_if_it_can(self) -> None:
        """If the log was begun with the means to. Also if no trigger is allowed now: tables that
        have some are handed over, and what they have buffered comes through the stream.
        """
        genesis = read_genesis(self._store)
        assert genesis is not None
        if carries_buffers(genesis):
            self._publications.append(self._duties.names.buffers)
            self._tables = HybridTables(self._store, self._task)

    def _start(self, conn: Connection, tip: Tip) -> None:
        """Begin to stream. Who held the lock before us may hold the slot a moment longer."""
        names = self._duties.names
        deadline = time.monotonic() + self._settings.sender_timeout_s + JOIN_TIMEOUT_S
        news = News()
        while True:
            try:
                self._connection.start(names.slot, self._publications, tip.position)
                break
            except psycopg.errors.ObjectInUse as error:
                if time.monotonic() >= deadline:
                    raise
                if news.is_new("slot", str(error)):
                    logger.warning("slot is in use, waiting for it slot=%s", names.slot)
            self._stop.wait(_START_INTERVAL_S)
            self._check_stop()
        # Only now is the slot ours: until a moment ago another may have moved it.
        slot = read_slot(conn, names.slot)
        assert slot is not None
        check_gap(slot, tip)
        # Housekeeping does it later, but if the store fails no leadership lasts until then.
        observe_retained(conn, slot, self._metrics)
        logger.info("streaming slot=%s from=%s", names.slot, tip.position)

    def _stream(self, tip: Tip) -> None:
        core = Core(tip.position, limits=self._settings.limits, now=time.monotonic())
        describe = describing(self._duties.dsn, self._store)
        writer = Writer(self._store, tip, writer_id=self._writer_id, describe=describe)
        inserts_only = InsertsOnlyTables(self._duties.dsn, self._duties.selection)
        translator = Translator(
            BufferShapes(self._duties.dsn),
            want_base=ask_for_base(self._duties.dsn, self._store),
            inserts_only=inserts_only,
        )
        writing = WritingThread(TranslatingWriter(writer, translator))
        housekeeping = Housekeeping(
            self._duties,
            self._store,
            self._tables,
            writer_id=self._writer_id,
            metrics=self._metrics,
        )
        try:
            housekeeping.start()
            stream = Streaming(
                self._connection,
                core,
                writing,
                metrics=self._metrics,
                should_stop=lambda: (
                    self._stop.is_set() or housekeeping.failure is not None or self._tables.is_done
                ),
            )
            stream.run()
            # While we still lead, so that two do not keep house at once.
            housekeeping.stop(JOIN_TIMEOUT_S)
            if housekeeping.failure is not None:
                raise housekeeping.failure
            logger.info("stopped slot=%s acknowledged=%s", self._duties.names.slot, core.durable)
            if self._tables.is_done:
                self._end_slot()
        finally:
            self._connection.close()
            hung = [housekeeping.stop(JOIN_TIMEOUT_S), writing.close(JOIN_TIMEOUT_S)]
            self.left_behind = [thread for thread in hung if thread is not None]
            inserts_only.close()

    def _end_slot(self) -> None:
        """No table comes from the WAL any more. What triggers have buffered since is drained: the
        log tells which rows it has.
        """
        self._connection.close()
        timeout_s, names = self._settings.sender_timeout_s, self._duties.names
        stream = EndedStream(
            names, self._task.leader_pid, timeout_s + JOIN_TIMEOUT_S, self._check_stop
        )
        session = LockSession(self._duties.dsn, sender_timeout_s=timeout_s)
        try:
            is_ended = stream.drop_slot(session)
        finally:
            session.close()
        outcome = "slot ended" if is_ended else "slot is left to the one who leads by now"
        logger.info("%s slot=%s", outcome, names.slot)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise SourceError("told to stop", retry=True)


def describing(dsn: str, store: Store) -> Describe:
    """Asks the catalog about tables whose Relation frame is new: rarely, so on a new session. New
    shapes, and new partitions, are kept for the watch, before any row in them is.
    """
    strays = Strays(store)

    def ask(relations: Sequence[Relation]) -> list[Relation]:
        strays.keep(keep_shapes(store, relations))
        try:
            with connect(dsn) as conn:
                return describe(conn, relations)
        except psycopg.Error as error:
            raise source_error(error) from error

    return ask
