"""Sessions on the target database, one for each table that is written at a time.

A session is handed out for one transaction. After any error it is closed, and so are those that
wait: whatever ended the one may have ended them, and the next try must not meet them.

Limits: a statement may take ten minutes, and a session that does nothing inside a transaction five.
So a writer that was stopped and not killed lets go of its locks in the end. A target that is
stopped keeps no such limit: a minute after it, the session is broken off from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import SourceError
from tailrace.postgres.deadline import TimedConnection
from tailrace.postgres.session import Connection, connect
from tailrace.sinks.postgres.refusals import connect_failure, sink_error

STATEMENT_TIMEOUT: Final = "10min"

ANSWER_S: Final = 660.0
"""When a target is taken for dead that should have ended the statement itself."""

_IDLE_MAX: Final = 4
_SETTINGS: Final = {
    "statement_timeout": STATEMENT_TIMEOUT,
    "idle_in_transaction_session_timeout": "5min",
    # What is delivered is as safe as the target keeps its own rows.
    "synchronous_commit": "on",
}


class Sessions:
    """A few open sessions; safe to use from many threads."""

    def __init__(self, dsn: str, *, answer_s: float = ANSWER_S) -> None:
        self._dsn = dsn
        self._answer_s = answer_s
        self._idle: list[Connection] = []
        self._lock = Lock()
        known = conninfo_to_dict(dsn)
        host, name = known.get("host") or "the local socket", known.get("dbname")
        self.place = f"{host}/{name}" if name else str(host)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that commits at the end of the block. Raises SinkError."""
        conn = self._take()
        try:
            with conn.transaction():
                yield conn
        except psycopg.Error as error:
            conn.close()
            self.close()
            raise sink_error(error, self.place) from error
        except BaseException:
            conn.close()
            raise
        self._put_back(conn)

    def close(self) -> None:
        """Close the sessions that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def _take(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return connect(self._dsn, settings=_SETTINGS, answer_s=self._answer_s)
        except SourceError as error:
            raise connect_failure(error) from error

    def _put_back(self, conn: Connection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(conn)
                return
        conn.close()


@contextmanager
def unlimited(conn: Connection) -> Iterator[None]:
    """Whatever is done in the block may take as long as it likes; inside a transaction."""
    assert isinstance(conn, TimedConnection), "it is a session of ours"
    conn.execute("SET LOCAL statement_timeout = 0")
    answer_s, conn.answer_s = conn.answer_s, None
    try:
        yield
    finally:
        conn.answer_s = answer_s
    conn.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(STATEMENT_TIMEOUT))
