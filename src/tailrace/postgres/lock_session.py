"""Leadership on an ordinary session: for capture without a slot, by a role that may not replicate.

The lock is the one that a leader with a slot takes on its replication session, so there is one
leader in all. The server ends the session when it is not pinged, and with it the lock: a leader
that hangs must not lead for ever.
"""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.errors import ConfigError
from tailrace.postgres.deadline import hang_up
from tailrace.postgres.replication import SENDER_TIMEOUT_S, lock_key
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.sqlstate import source_error


def refuse_pooler(conn: Connection) -> None:
    """Raise ConfigError if another backend answers than the one of the handshake: a connection
    pooler may give each transaction another one, and a lock would be anybody's.
    """
    if conn.execute("SELECT pg_backend_pid()").fetchone() != (conn.info.backend_pid,):
        raise ConfigError(
            "a connection pooler stands before postgres, so nobody can be seen to lead",
            hint="point source.dsn at postgres itself: a pooler does not keep a session's lock",
        )


class LockSession:
    """One session that can hold the lock. Not thread-safe."""

    def __init__(self, dsn: str, *, sender_timeout_s: int = SENDER_TIMEOUT_S) -> None:
        timeout = f"{sender_timeout_s}s"
        settings = {
            "idle_session_timeout": timeout,
            # These must be the server's: libpq's own keepalives protect the client only.
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": timeout,
        }
        self.conn: Final = connect(dsn, settings=settings)
        """The session itself: what is done on it shares the fate of the locks."""

        self.pid: Final = self.conn.info.backend_pid
        """The backend that holds the lock."""

    def try_lock(self, slot: str) -> bool:
        """Try to become the leader; the lock is held until this session ends."""
        try:
            query = "SELECT pg_try_advisory_lock(%s)"
            return self.conn.execute(query, (lock_key(slot),)).fetchone() == (True,)
        except psycopg.Error as error:
            raise source_error(error) from error

    def unlock(self, slot: str) -> None:
        """Let others have the lock."""
        try:
            self.conn.execute("SELECT pg_advisory_unlock(%s)", (lock_key(slot),))
        except psycopg.Error as error:
            raise source_error(error) from error

    def ping(self) -> None:
        """Keep the session, and so the lock; raises SourceError if it is lost."""
        try:
            self.conn.execute("SELECT 1")
        except psycopg.Error as error:
            raise source_error(error) from error

    def hang_up(self) -> None:
        """From any thread: whatever waits for an answer of the server gets an error."""
        hang_up(self.conn)

    def close(self) -> None:
        """End the session; the lock is free the moment the server sees it."""
        self.conn.close()
