"""Capture: contend for leadership, lead, and start again after anything that may pass.

Until the first stream has begun, every error ends the process, because a person is watching. After
that only what cannot heal by itself does: a lost slot, a gap, a damaged log.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import psycopg

from tailrace.capture.attach import Attachment, attach
from tailrace.capture.backoff import Backoff
from tailrace.capture.core import Core, Limits
from tailrace.capture.housekeeping import Duties, Housekeeping
from tailrace.capture.membership import Membership, refuse_named
from tailrace.capture.metrics import Metrics
from tailrace.capture.streaming import Streaming
from tailrace.capture.writing import WritingThread
from tailrace.errors import (
    ConfigError,
    LogFenced,
    SchemaError,
    SegmentCorrupt,
    SegmentMissing,
    SlotLost,
    SourceError,
    SourceGap,
    TailraceError,
)
from tailrace.log import Tip, Writer
from tailrace.log.relations import Describe
from tailrace.postgres.catalog import RelationCatalog, describe_relations
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.session import connect, source_error
from tailrace.postgres.slot import classify, read_slot
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_POLL_S: Final = (0.5, 1.0)
_TERMINAL: Final = (ConfigError, SchemaError, SegmentCorrupt, SegmentMissing, SlotLost, SourceGap)


@dataclass(frozen=True, slots=True)
class Settings:
    """What capture is told."""

    duties: Duties
    limits: Limits = field(default_factory=Limits)


class Daemon:
    """One process that captures, or stands by to."""

    def __init__(
        self, settings: Settings, store: Store, *, metrics: Metrics, stop: threading.Event
    ) -> None:
        self._settings = settings
        self._duties = settings.duties
        self._store = store
        self._metrics = metrics
        self._stop = stop
        self._random = Random()
        self._has_streamed = False
        self._said = ""

    def run(self) -> None:
        """Capture until told to stop; raises what cannot heal by itself."""
        backoff = Backoff(self._random)
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._lead_once()
            except _TERMINAL:
                raise
            except TailraceError as error:
                if not self._has_streamed and not isinstance(error, LogFenced):
                    raise
                self._say(error)
                self._metrics.reconnects.inc()
            if time.monotonic() - started > 60:
                backoff.reset()
            self._stop.wait(backoff.next_s())

    def _say(self, error: TailraceError) -> None:
        if str(error) != self._said:
            self._said = str(error)
            logger.warning("capture interrupted error=%s", error)

    def _lead_once(self) -> None:
        connection = self._win_leadership()
        if connection is None:
            return
        try:
            self._metrics.is_leader.set(1)
            self._stream(connection, writer_id=secrets.token_hex(8))
        except psycopg.Error as error:
            raise self._classified(error) from error
        finally:
            self._metrics.is_leader.set(0)
            connection.close()

    def _win_leadership(self) -> ReplicationConnection | None:
        """The connection that holds the lock; None if told to stop while standing by."""
        connection = ReplicationConnection(self._duties.dsn)
        is_standby = False
        try:
            while not connection.try_lock(self._duties.names.slot):
                if not is_standby:
                    is_standby = True
                    logger.info(
                        "standing by: another process leads slot=%s", self._duties.names.slot
                    )
                if self._stop.wait(self._random.uniform(*LOCK_POLL_S)):
                    connection.close()
                    return None
        except (TailraceError, psycopg.Error):
            connection.close()
            raise
        return connection

    def _stream(self, connection: ReplicationConnection, *, writer_id: str) -> None:
        tip = self._attach(connection, writer_id)
        writer = Writer(self._store, tip, writer_id=writer_id, describe=_describe(self._duties.dsn))
        writing = WritingThread(writer)
        housekeeping = Housekeeping(
            self._duties, self._store, writer_id=writer_id, metrics=self._metrics
        )
        try:
            names = self._duties.names
            connection.start(names.slot, [names.publication], tip.position)
            self._has_streamed = True
            self._said = ""
            logger.info("streaming slot=%s from=%s", names.slot, tip.position)
            core = Core(tip.position, limits=self._settings.limits, now=time.monotonic())
            housekeeping.start()
            stream = Streaming(
                connection,
                core,
                writing,
                metrics=self._metrics,
                should_stop=lambda: self._stop.is_set() or housekeeping.failure is not None,
            )
            stream.run()
            if housekeeping.failure is not None:
                raise housekeeping.failure
            logger.info("stopped slot=%s acknowledged=%s", names.slot, core.durable)
        finally:
            housekeeping.stop()
            writing.close(timeout_s=5.0)

    def _attach(self, connection: ReplicationConnection, writer_id: str) -> Tip:
        duties = self._duties
        with connect(duties.dsn) as conn:
            tip = attach(
                Attachment(conn, self._store, duties.names, writer_id, self._keep_alive(connection))
            )
            membership = Membership(conn, self._store, duties.names.publication)
            refusals = membership.take_up(duties.patterns)
            refuse_named(duties.patterns, refusals)
            if refusals and not membership.member_count():
                first = refusals[0]
                raise SchemaError(f"{first.table} {first.message}", hint=first.fix)
        connection.ping()
        return tip

    def _keep_alive(self, connection: ReplicationConnection) -> Callable[[], None]:
        def keep_alive() -> None:
            if self._stop.is_set():
                raise SourceError("told to stop", retry=True)
            connection.ping()

        return keep_alive

    def _classified(self, error: psycopg.Error) -> TailraceError:
        """What a broken stream means; the slot itself tells whether it is lost."""
        name = self._duties.names.slot
        try:
            with connect(self._duties.dsn) as conn:
                return classify(error, name, read_slot(conn, name))
        except (TailraceError, psycopg.Error):
            return SourceError("the connection to postgres is lost", retry=True)


def _describe(dsn: str) -> Describe:
    """Asks the catalog about tables whose Relation frame is new: rarely, so on a new session."""

    def describe(oids: Sequence[int]) -> Mapping[int, RelationCatalog]:
        try:
            with connect(dsn) as conn:
                return describe_relations(conn, oids)
        except psycopg.Error as error:
            raise source_error(error) from error

    return describe
