"""Which streams this pipeline delivers, while others stand by: one lock for each, on one session.

The lock decides who begins, the epoch in the stream's record who may commit. So a lock that is lost
does no harm, and a database that cannot be reached stops no stream: whoever led goes on until it is
fenced, and a pipeline that could never ask for the locks takes up every stream. Once fenced, only
the lock makes it lead again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from tailrace.postgres.leading import leader_pid
from tailrace.postgres.lock_session import LockSession

logger = logging.getLogger(__name__)

FENCED_S: Final = 2.0
"""How long a pipeline that holds the lock and was fenced all the same waits before it leads again:
the other one has not heard yet.
"""


class Leadership:
    """The locks of one source's streams. Not thread-safe."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._locked: set[str] = set()
        self._led_elsewhere: set[str] = set()
        self._presumed: set[str] | None = None
        self._fenced_until: dict[str, float] = {}
        self._past_pids: set[int] = set()
        self.terms: dict[str, int] = {}
        """How often each stream was lost to another pipeline."""

    def leads(self, name: str, now: float) -> bool:
        """Whether this pipeline delivers the stream."""
        if now < self._fenced_until.get(name, 0.0):
            return False
        return name in self._locked or (self._presumed is not None and name in self._presumed)

    def presume(self, names: Iterable[str]) -> None:
        """The database cannot be reached; if it never could, nobody can be asked who leads."""
        if self._presumed is None:
            self._presumed = set(names) - set(self.terms)

    def lost_session(self) -> None:
        """The locks are gone, or will be; who led goes on leading."""
        if self._presumed is not None:
            self._presumed |= self._locked
        self._locked = set()

    def contend(self, session: LockSession, names: Iterable[str]) -> None:
        """Take what is free; raises SourceError if the session is lost: then who led still does."""
        presumed, stays = self._presumed or set(), set[str]()
        self._past_pids.add(session.pid)
        for name in names:
            if name in self._locked:
                continue
            if session.try_lock(self._lock(name)):
                self._locked.add(name)
                self._led_elsewhere.discard(name)
                logger.info("stream is led here stream=%s", name)
            elif name in presumed and self._is_held_by_our_past(session, name):
                # The server has not noticed yet that the session is gone.
                stays.add(name)
            elif name not in self._led_elsewhere:
                self._led_elsewhere.add(name)
                logger.info("stream is led elsewhere stream=%s", name)
        self._presumed = stays
        if not stays:
            self._past_pids = {session.pid}

    def is_free(self, session: LockSession, name: str) -> bool:
        """Whether nobody else leads the stream; from then on nobody else can."""
        if name not in self._locked and session.try_lock(self._lock(name)):
            self._locked.add(name)
        return name in self._locked

    def release(self, session: LockSession, name: str) -> None:
        """Let others have it."""
        if name in self._locked:
            session.unlock(self._lock(name))
            self._locked.discard(name)

    def was_fenced(self, name: str, now: float) -> None:
        """Another pipeline has taken the stream over."""
        self.terms[name] = self.terms.get(name, 0) + 1
        self._fenced_until[name] = now + FENCED_S
        if self._presumed is not None:
            self._presumed.discard(name)

    def _lock(self, name: str) -> str:
        return f"{self._source} stream {name}"

    def _is_held_by_our_past(self, session: LockSession, name: str) -> bool:
        pid = leader_pid(session.conn, self._lock(name))
        if pid is None or pid not in self._past_pids:
            return False
        session.conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return True
