"""What keeps a table from its next step: said once, shown beside its mode, gone with its cause."""

from __future__ import annotations

import logging

from tailrace.capture.news import News
from tailrace.control.tracking import Mode, Tracked, clear_error, read_tracked, set_error
from tailrace.errors import TailraceError
from tailrace.postgres.leading import as_leader
from tailrace.postgres.session import Connection

logger = logging.getLogger(__name__)


class Trouble:
    """One leader's."""

    def __init__(self, source: str, leader_pid: int) -> None:
        self._source = source
        self._leader_pid = leader_pid
        self._news = News()

    def say(self, conn: Connection, oid: int, name: str, error: TailraceError) -> None:
        """A table that is captured stays as it is, for now; it is shown why. Raises NotLeading: the
        row is another's to write.
        """
        if oid in read_tracked(conn, self._source):
            with as_leader(conn, self._source, self._leader_pid):
                set_error(conn, oid, str(error), source=self._source)
        if self._news.is_new(str(oid), str(error)):
            logger.warning("table stays as it is for now table=%s reason=%s", name, error)

    def is_over(self, conn: Connection, oid: int, tracked: Tracked | None) -> None:
        """The step was made. Why a hand-over was given up, or undone, stays to be seen."""
        was_said = self._news.forget(str(oid))
        if tracked is None or tracked.last_error is None:
            return
        if tracked.mode is Mode.WAL or (was_said and tracked.mode is Mode.TRIGGER):
            with as_leader(conn, self._source, self._leader_pid):
                clear_error(conn, oid, tracked.last_error, source=self._source)
