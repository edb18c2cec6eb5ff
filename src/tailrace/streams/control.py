"""Follows the control schema for a pipeline: which streams there are to be, who delivers them, and
how that is going.

A thread of its own, on one session: it listens for changes, reads the table once a second in case
a word got lost, holds the locks of the streams that this pipeline delivers, and reports. It is
never waited for, and waits for the log only when a stream comes, changes or goes: threads beside
it see what there is to report, and follow replays. While the database cannot be reached, the
streams go on as they were last wished.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import Final

import psycopg

from tailrace.backoff import Backoff
from tailrace.control.stream_reports import slot_is_lost
from tailrace.control.streams import (
    STREAMS_CHANNEL,
    has_streams,
    read_streams,
)
from tailrace.errors import TailraceError
from tailrace.log import Reader
from tailrace.postgres.lock_session import LockSession, refuse_pooler
from tailrace.postgres.quote import identifier, statement
from tailrace.storage import Store
from tailrace.streams.kept_roster import Kept
from tailrace.streams.known import KnownStreams
from tailrace.streams.leading import Leadership
from tailrace.streams.observing import Delivering, Observer
from tailrace.streams.place import Wish
from tailrace.streams.removing import remove_stream
from tailrace.streams.replay.following import ReplayFollower
from tailrace.streams.reports import Reports
from tailrace.streams.stream import Stream
from tailrace.streams.watching import Watch

logger = logging.getLogger(__name__)

TURN_S: Final = 1.0
ANSWER_S: Final = 20.0
"""How long the database may take for a turn."""

STOP_S: Final = 5.0
_POLL_S: Final = 0.1


class Control:
    """One pipeline's thread; `wishes` may be read by any."""

    def __init__(
        self,
        open_session: Callable[[], LockSession],
        store: Store,
        *,
        source: str,
        declared: Sequence[Kept],
        resolve: Callable[[Kept], Stream],
        only: frozenset[str] | None = None,
    ) -> None:
        """`declared`, `resolve` and `only` are as `KnownStreams` has them."""
        self.node: Final = f"{socket.gethostname()}:{os.getpid()}"
        self._open_session = open_session
        self._store = store
        self._source = source
        self._known = KnownStreams(store, declared, resolve, only)
        self._leadership = Leadership(source)
        self._fenced: SimpleQueue[Wish] = SimpleQueue()
        self._session: LockSession | None = None
        self._opening: LockSession | None = None
        self._backoff = Backoff(Random())
        self._replays = ReplayFollower(
            open_session, store, source=source, leads=self._leadership.leads
        )
        observer = Observer(Reader(store), node=self.node, slot_is_lost=lambda: self.is_slot_lost)
        self._watch = Watch(observer)
        self._reports = Reports(observer, source=source)
        self._said = ""
        self._stop = threading.Event()
        self._has_looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-control", daemon=True)
        self._places: Callable[[], Sequence[Delivering]] = list
        self._step_at = time.monotonic()
        self.is_slot_lost = False
        """As of the last turn."""
        self.was_reached = False
        """Whether the streams' table was found, if only once: it is followed from then on."""
        self.wishes: list[Wish] = []
        """What is wished of each stream, as far as it is known."""

    def start(self, places: Callable[[], Sequence[Delivering]]) -> None:
        """Begin. The first turn is waited for, so that streams begin with what it finds."""
        self._places = places
        self._known.begin()
        self._watch.start(places)
        self._replays.start()
        self._thread.start()
        while self._thread.is_alive() and not self._has_looked.wait(_POLL_S):
            self.wake()

    def stop(self) -> None:
        """Give the locks back, so that others take over at once; a server that does not answer is
        not waited for.
        """
        self._stop.set()
        self._watch.stop()
        self._replays.stop()
        if self._thread.ident is None:
            return
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            self._hang_up()
            self._thread.join(STOP_S)

    def leads(self, name: str) -> bool:
        """Whether a stream is delivered here."""
        return any(wish.name == name and wish.is_led for wish in self.wishes)

    def was_fenced(self, wish: Wish) -> None:
        """Another pipeline has taken a stream over that was to be delivered here."""
        self._fenced.put(wish)

    def wake(self) -> None:
        """End a session that does not answer any more, as one behind a cut does."""
        if time.monotonic() - self._step_at > ANSWER_S:
            self._hang_up()
            self._replays.hang_up()

    def _hang_up(self) -> None:
        """Whatever waits for an answer gets an error."""
        session = self._session or self._opening
        if session is not None:
            session.hang_up()

    def _publish(self) -> None:
        while not self._fenced.empty():
            wish = self._fenced.get()
            if wish.term == self._leadership.terms.get(wish.name, 0):
                self._leadership.was_fenced(wish.name, time.monotonic())
        now = time.monotonic()
        self.wishes = [self._wish(each, now) for each in self._known.streams.values()]

    def _wish(self, kept: Kept, now: float) -> Wish:
        found = self._known.stream(kept)
        return Wish(
            kept.name,
            found if isinstance(found, Stream) else None,
            revision=kept.revision,
            term=self._leadership.terms.get(kept.name, 0),
            is_paused=kept.paused,
            is_led=self._leadership.leads(kept.name, now),
            error=found if isinstance(found, TailraceError) else None,
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            self._step()
        if self._session is not None:
            self._leave(self._session)

    def _leave(self, session: LockSession) -> None:
        with suppress(TailraceError, psycopg.Error):
            if has_streams(session.conn):
                self._reports.take_leave(session.conn, self._reportable())
        session.close()

    def _step(self) -> None:
        self._step_at = time.monotonic()
        try:
            if self._session is None:
                self._connect()
            assert self._session is not None
            self._turn(self._session)
            self._publish()
            self._backoff.reset()
            self._said = ""
            self._has_looked.set()
            # Wakes up for a word; else a second later.
            list(self._session.conn.notifies(timeout=TURN_S, stop_after=1))
        except (TailraceError, psycopg.Error, OSError) as error:
            self._lost(error)
        except Exception as error:
            # Whatever it is: nobody would follow the table any more, and nobody would know.
            logger.warning("the control schema cannot be followed", exc_info=True)
            self._lost(error)

    def _connect(self) -> None:
        session = self._opening = self._open_session()
        try:
            refuse_pooler(session.conn)
            session.conn.execute(statement("LISTEN {}", identifier(STREAMS_CHANNEL)))
        except BaseException:
            session.close()
            raise
        finally:
            self._opening = None
        self._session = session

    def _lost(self, error: Exception) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._leadership.lost_session()
        self._leadership.presume(self._known.streams)
        self._publish()
        self._has_looked.set()
        text = str(error).partition("\n")[0]
        if text != self._said and not self._stop.is_set():
            self._said = text
            logger.warning("streams flow on without the control schema error=%s", text)
        self._stop.wait(self._backoff.next_s())

    def _turn(self, session: LockSession) -> None:
        session.ping()
        is_known = has_streams(session.conn)
        if is_known:
            self.was_reached = True
            found = {row.name: Kept.of(row) for row in read_streams(session.conn, self._source)}
            self._known.follow(found, partial(self._is_ended, session))
        self._leadership.contend(session, self._known.streams)
        if is_known:
            self.is_slot_lost = slot_is_lost(session.conn, self._source)
            self._reports.send(session.conn, self._reportable())
            self._replays.go_on()

    def _is_ended(self, session: LockSession, name: str) -> bool:
        """A stream was deleted: once nobody delivers it, its record goes."""
        if any(place.wish.name == name for place in self._places()):
            return False
        if not self._leadership.is_free(session, name):
            return False
        remove_stream(self._store, name)
        self._leadership.release(session, name)
        logger.info("stream removed stream=%s", name)
        return True

    def _reportable(self) -> list[Delivering]:
        """The streams of which it is for this pipeline to say how they are."""
        now = time.monotonic()
        return [
            place
            for place in self._places()
            if self._leadership.leads(place.wish.name, now)
            and not place.wish.is_paused
            and not place.is_fenced
        ]
