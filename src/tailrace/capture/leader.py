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
from tailrace.capture.attach import Attachment, attach, check_gap
from tailrace.capture.core import Core
from tailrace.capture.housekeeping import Duties, Housekeeping
from tailrace.capture.keeper import Keeper
from tailrace.capture.looks import keep_shapes
from tailrace.capture.membership import Membership, refuse
from tailrace.capture.metrics import Metrics
from tailrace.capture.news import News
from tailrace.capture.removal import take_out
from tailrace.capture.roll import rolls_of
from tailrace.capture.streaming import Streaming
from tailrace.capture.writing import WritingThread
from tailrace.errors import SourceError
from tailrace.log import Tip, Writer
from tailrace.log.relations import Describe
from tailrace.model import Relation
from tailrace.postgres.description import describe
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

            tip = attach(Attachment(conn, self._store, duties.names, self._writer_id, go_on))
            selection = duties.selection
            refusals, member_count = [], 0
            for roll in rolls_of(duties.names):
                take_out(conn, self._store, roll, selection, should_go_on=should_go_on)
            for roll in rolls_of(duties.names):
                membership = Membership(conn, self._store, roll)
                refusals += membership.take_up(selection, should_go_on=should_go_on)
                member_count += len(membership.member_oids())
            if is_first:
                refuse(selection.patterns, refusals, member_count=member_count)
        return tip

    def _start(self, conn: Connection, tip: Tip) -> None:
        """Begin to stream. Who held the lock before us may hold the slot a moment longer."""
        names = self._duties.names
        publications = [roll.publication for roll in rolls_of(names)]
        deadline = time.monotonic() + self._settings.sender_timeout_s + JOIN_TIMEOUT_S
        news = News()
        while True:
            try:
                self._connection.start(names.slot, publications, tip.position)
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
        logger.info("streaming slot=%s from=%s", names.slot, tip.position)

    def _stream(self, tip: Tip) -> None:
        core = Core(tip.position, limits=self._settings.limits, now=time.monotonic())
        describe = _describe(self._duties.dsn, self._store)
        writing = WritingThread(
            Writer(self._store, tip, writer_id=self._writer_id, describe=describe)
        )
        housekeeping = Housekeeping(
            self._duties, self._store, writer_id=self._writer_id, metrics=self._metrics
        )
        try:
            housekeeping.start()
            stream = Streaming(
                self._connection,
                core,
                writing,
                metrics=self._metrics,
                should_stop=lambda: self._stop.is_set() or housekeeping.failure is not None,
            )
            stream.run()
            # While we still lead, so that two do not keep house at once.
            housekeeping.stop(JOIN_TIMEOUT_S)
            if housekeeping.failure is not None:
                raise housekeeping.failure
            logger.info("stopped slot=%s acknowledged=%s", self._duties.names.slot, core.durable)
        finally:
            self._connection.close()
            hung = [housekeeping.stop(JOIN_TIMEOUT_S), writing.close(JOIN_TIMEOUT_S)]
            self.left_behind = [thread for thread in hung if thread is not None]

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise SourceError("told to stop", retry=True)


def _describe(dsn: str, store: Store) -> Describe:
    """Asks the catalog about tables whose Relation frame is new: rarely, so on a new session. New
    shapes are kept for the watch, before any row in them is.
    """

    def ask(relations: Sequence[Relation]) -> list[Relation]:
        keep_shapes(store, relations)
        try:
            with connect(dsn) as conn:
                return describe(conn, relations)
        except psycopg.Error as error:
            raise source_error(error) from error

    return ask
