"""Follows what is asked for in `tailrace.streams` about replays, beside control and on a session of
its own: it reads the log between two words to Postgres, and control must not wait for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from tailrace.control.streams import StreamRow, read_streams
from tailrace.errors import LogError, SegmentCorrupt, TailraceError
from tailrace.postgres.lock_session import LockSession
from tailrace.storage import Store
from tailrace.streams.replay.by_sql import ReplaysBySql

logger = logging.getLogger(__name__)

STOP_S: Final = 1.0


class ReplayFollower:
    """A thread of its own, which holds no lock. `go_on` is called by control, turn by turn."""

    def __init__(
        self,
        open_session: Callable[[], LockSession],
        store: Store,
        *,
        source: str,
        leads: Callable[[str, float], bool],
    ) -> None:
        """`leads` tells whether a stream is delivered here."""
        self._open_session = open_session
        self._source = source
        self._leads = leads
        self._replays = ReplaysBySql(store, source)
        self._session: LockSession | None = None
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-replays", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def go_on(self) -> None:
        """The database is there, and knows streams: see what their rows ask for."""
        self._news.set()

    def stop(self) -> None:
        """End; a server or a store that does not answer is not waited for."""
        self._stop.set()
        self._news.set()
        self.hang_up()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def hang_up(self) -> None:
        """End a session that does not answer any more."""
        if (session := self._session) is not None:
            session.hang_up()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.wait()
            self._news.clear()
            if not self._stop.is_set():
                self._step()
        self._close()

    def _step(self) -> None:
        try:
            session = self._session
            if session is None:
                session = self._session = self._open_session()
            self._follow(session)
        except (TailraceError, psycopg.Error, OSError) as error:
            # The next turn of control tries again.
            logger.debug("replays cannot be followed error=%s", error)
            self._close()
        except Exception:
            logger.warning("replays cannot be followed", exc_info=True)
            self._close()

    def _follow(self, session: LockSession) -> None:
        """What is asked for in the rows of streams that are delivered here."""
        now = time.monotonic()
        try:
            for row in read_streams(session.conn, self._source):
                if self._leads(row.name, now):
                    self._follow_row(session, row)
            self._replays.tell_available(session.conn, now)
        except LogError as error:
            logger.debug("replays cannot be followed error=%s", error)

    def _follow_row(self, session: LockSession, row: StreamRow) -> None:
        try:
            self._replays.follow(session.conn, row)
        except SegmentCorrupt as error:
            # What others ask for has nothing to do with it.
            logger.debug("replay cannot be followed stream=%s error=%s", row.name, error)

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
