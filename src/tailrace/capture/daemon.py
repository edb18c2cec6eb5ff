"""Capture: contend for leadership, lead, and start again after anything that may pass.

Until this process has streamed or stood by, every error ends it, because a person is watching.
After that only what cannot heal by itself does: a slot lost that triggers cannot stand in for, a
gap, a damaged log.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from random import Random
from typing import Final

import psycopg

from tailrace.backoff import Backoff
from tailrace.capture.drains.leader import DrainLeader
from tailrace.capture.footing import Footing, carries_buffers, footing
from tailrace.capture.leader import Leader, Settings
from tailrace.capture.metrics import Metrics
from tailrace.capture.news import News
from tailrace.errors import (
    ConfigError,
    LogFenced,
    SchemaError,
    SegmentCorrupt,
    SegmentMissing,
    SlotLost,
    SourceError,
    SourceGap,
    StoreError,
    TailraceError,
)
from tailrace.log import read_genesis
from tailrace.postgres.detection import must_have_wal
from tailrace.postgres.lock_session import LockSession, refuse_pooler
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.session import connect, source_error
from tailrace.postgres.slot import classify, read_slot
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_POLL_S: Final = (0.5, 1.0)
LEFT_BEHIND_MAX: Final = 4
"""How many threads may hang in a dead store before we stop adding to them."""

_SWITCH_S: Final = 0.0005
"""How long the thread that talks to Postgres may wait for the interpreter; Python's default is ten
times as long, and a sender on the same machine would stand still meanwhile.
"""

_GOOD_S: Final = 10.0
"""A leadership that lasted so long did not fail at once: the next try need not wait."""

_TERMINAL: Final = (ConfigError, SchemaError, SegmentCorrupt, SegmentMissing, SlotLost, SourceGap)


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
        self._is_settled = False
        self._news = News()
        self._left_behind: list[threading.Thread] = []

    def run(self) -> None:
        """Capture until told to stop; raises what cannot heal by itself."""
        sys.setswitchinterval(_SWITCH_S)
        backoff = Backoff(self._random)
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._check_left_behind()
                self._lead_once()
            except TailraceError as error:
                if isinstance(error, _TERMINAL) and not self._can_do_without(error):
                    raise
                if self._stop.is_set():
                    return
                if not self._is_settled and not isinstance(error, LogFenced):
                    raise
                if time.monotonic() - started > _GOOD_S:
                    self._news.forget("capture")
                self._say_once(error)
                self._metrics.reconnects.inc()
            if time.monotonic() - started > _GOOD_S:
                backoff.reset()
            self._stop.wait(backoff.next_s())

    def _say_once(self, error: TailraceError) -> None:
        """One that lasts may name another object at each try; what to do about it is the same."""
        if self._news.is_new("capture", error.hint or str(error)):
            hint = f" hint={error.hint}" if error.hint else ""
            logger.warning("capture interrupted error=%s%s", error, hint)

    def _can_do_without(self, error: TailraceError) -> bool:
        """Whether what was lost is a slot, and triggers can take its place."""
        if not isinstance(error, SlotLost) or not self._duties.hybrid.may_use_triggers:
            return False
        genesis = read_genesis(self._store)
        return genesis is not None and carries_buffers(genesis)

    def _check_left_behind(self) -> None:
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) >= LEFT_BEHIND_MAX:
            raise StoreError(f"the store at {self._store.url} does not answer")

    def _lead_once(self) -> None:
        wanted = self._footing()
        if wanted is Footing.DRAINS and not self._is_settled:
            self._check_triggers()
        session = self._win_leadership(wanted)
        if session is None:
            return
        # Who led until now may have moved the log from one footing to the other.
        if self._footing() is not wanted:
            session.close()
            return
        leader = self._leader(session)
        try:
            leader.run(is_first=not self._is_settled, on_streaming=self._settle)
        except psycopg.Error as error:
            raise self._classified(error) from error
        finally:
            self._left_behind += leader.left_behind

    def _leader(self, session: ReplicationConnection | LockSession) -> Leader | DrainLeader:
        around = (self._settings, self._store)
        if isinstance(session, LockSession):
            return DrainLeader(session, *around, metrics=self._metrics, stop=self._stop)
        return Leader(session, *around, metrics=self._metrics, stop=self._stop)

    def _check_triggers(self) -> None:
        """Raise SourceError if the log goes on with what triggers have buffered, none may be used
        any more, and no slot can take their place. Also who would only stand by does not start.
        """
        duties = self._duties
        if not duties.hybrid.may_use_triggers:
            try:
                with connect(duties.dsn) as conn:
                    must_have_wal(conn, duties.names)
            except psycopg.Error as error:
                raise source_error(error) from error

    def _footing(self) -> Footing:
        duties = self._duties
        return footing(duties.dsn, self._store, duties.names, duties.hybrid)

    def _settle(self) -> None:
        self._is_settled = True

    def _win_leadership(self, wanted: Footing) -> ReplicationConnection | LockSession | None:
        """The session that holds the lock; None if told to stop while standing by."""
        slot = self._duties.names.slot
        kind = ReplicationConnection if wanted is Footing.SLOT else LockSession
        session = kind(self._duties.dsn, sender_timeout_s=self._settings.sender_timeout_s)
        is_standby = False
        try:
            if isinstance(session, LockSession):
                refuse_pooler(session.conn)
            while not session.try_lock(slot):
                if not is_standby:
                    is_standby = True
                    self._settle()
                    logger.info("standing by: another process leads slot=%s", slot)
                if self._stop.wait(self._random.uniform(*LOCK_POLL_S)):
                    session.close()
                    return None
        except TailraceError:
            session.close()
            raise
        return session

    def _classified(self, error: psycopg.Error) -> TailraceError:
        """What a broken stream means; the slot itself tells whether it is lost."""
        name = self._duties.names.slot
        try:
            with connect(self._duties.dsn) as conn:
                return classify(error, name, read_slot(conn, name))
        except (TailraceError, psycopg.Error):
            return SourceError("the connection to postgres is lost", retry=True)
