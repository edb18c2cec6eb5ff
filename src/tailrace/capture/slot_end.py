"""The end of a slot on purpose: no table comes from the WAL any more, and triggers do without it.

A slot cannot be dropped while it is streamed, and the session that streams is the one that leads.
So the stream ends first, and the lock is won again, on an ordinary session, before anything is
dropped: by that session itself, so that it cannot happen when another leads. Whoever has led
meanwhile may have put the slot to use; then it is left alone. Wherever this dies, the slot is there
and the next leader streams from it, or it is gone and the next leader drains: the log tells which
rows it has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg

from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.leading import leader_pid
from tailrace.postgres.lock_session import LockSession, refuse_pooler
from tailrace.postgres.publication import published_tables
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import source_error
from tailrace.postgres.slot import drop_slot, read_slot

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class EndedStream:
    """A stream that its leader has ended: the backend that sent it, which may be there for a moment
    longer, at most until `wait_s` have passed. `go_on` is called meanwhile, and may raise.
    """

    names: SourceNames
    sender_pid: int
    wait_s: float
    go_on: Callable[[], None]

    def drop_slot(self, session: LockSession) -> bool:
        """Drop the slot, as the leader that the session becomes; False if it is another's by now.
        Raises SourceError.
        """
        try:
            refuse_pooler(session.conn)
            if not (self._leads_again(session) and self._is_of_no_use(session)):
                return False
            failpoint("slot.before_end")
            drop_slot(session.conn, self.names.slot, ends_sender=False)
            failpoint("slot.after_end")
            return True
        except psycopg.Error as error:
            raise source_error(error) from error

    def _leads_again(self, session: LockSession) -> bool:
        slot, deadline = self.names.slot, time.monotonic() + self.wait_s
        while not session.try_lock(slot):
            if leader_pid(session.conn, slot) not in (None, self.sender_pid):
                return False
            self._wait(deadline)
        return True

    def _is_of_no_use(self, session: LockSession) -> bool:
        """Whether the slot is still what the stream has left: nobody streams from it, nor is any
        table published. Who leads reads of it what is so until it does otherwise.
        """
        deadline = time.monotonic() + self.wait_s
        while (state := read_slot(session.conn, self.names.slot)) is not None and state.is_active:
            if state.active_pid != self.sender_pid:
                return False
            self._wait(deadline)
        return not published_tables(session.conn, self.names)

    def _wait(self, deadline: float) -> None:
        self.go_on()
        if time.monotonic() >= deadline:
            raise SourceError(
                f"pid {self.sender_pid}, which has streamed slot {self.names.slot}, does not end",
                retry=True,
            )
        time.sleep(_POLL_S)
