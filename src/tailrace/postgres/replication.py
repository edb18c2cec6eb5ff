"""The replication connection: leadership and stream on one session, so that they share one fate.

The advisory lock is taken on the session that will stream, before START_REPLICATION. Whoever loses
the connection loses both. The lock is polled, never waited for: a blocked session would hold back
vacuum, fall to statement_timeout, and could be given the lock when its host is long gone. No call
waits for ever: a server that does not answer in time is gone.
"""

from __future__ import annotations

import hashlib
import select
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

import psycopg
from psycopg import pq, sql

from tailrace.errors import SourceError
from tailrace.model import Lsn
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US
from tailrace.postgres.session import conninfo, pin, source_error
from tailrace.postgres.sqlstate import connect_error
from tailrace.postgres.wire import LibpqWire, PlainWire, Wire

SENDER_TIMEOUT_S: Final = 15
"""After a host is lost, this is how long its lock and its slot stay taken."""

ANSWER_TIMEOUT_S: Final = 10.0
"""How long the server may take to answer a command; none of ours is work for it."""

_STATUS: Final = struct.Struct(">cQQQqB")


def lock_key(slot: str) -> int:
    """The advisory lock of a slot, as a signed 64-bit number."""
    digest = hashlib.sha256(f"tailrace leader of {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class ReplicationConnection:
    """One walsender session. Not thread-safe."""

    def __init__(self, dsn: str, *, sender_timeout_s: int = SENDER_TIMEOUT_S) -> None:
        target = conninfo(dsn, settings=_settings(sender_timeout_s), replication=True)
        self._wire: Wire | None = None
        try:
            # libpq's own PQconnectdb would hold up every thread of this process meanwhile.
            self._conn = psycopg.connect(target, autocommit=True)
        except psycopg.Error as error:
            raise connect_error(str(error), target) from error
        self._pgconn = self._conn.pgconn
        try:
            pin(self._pgconn)
        except SourceError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The backend that streams, and that holds the lock."""
        return self._pgconn.backend_pid

    def try_lock(self, slot: str) -> bool:
        """Try to become the leader; the lock is held until this connection ends."""
        query = sql.SQL("SELECT pg_try_advisory_lock({})").format(sql.Literal(lock_key(slot)))
        return self._query(query) == b"t"

    def ping(self) -> None:
        """Keep the session, and so the lock, from being ended for idleness."""
        self._query(sql.SQL("SELECT 1"))

    def start(self, slot: str, publications: Sequence[str], position: Lsn) -> None:
        """Begin to stream everything that ends after `position`; raises psycopg.Error."""
        names = ",".join('"' + name.replace('"', '""') + '"' for name in publications)
        options = {"proto_version": "1", "publication_names": names, "messages": "true"}
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(slot),
            sql.SQL(str(Lsn(position.wal))),
            sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value))
                for name, value in options.items()
            ),
        )
        is_plain = self._is_plain()
        self._send(command)
        if is_plain:
            self._await(select.POLLIN, time.monotonic() + ANSWER_TIMEOUT_S)
            self._wire = PlainWire.begin(self._pgconn.socket)
        if self._wire is None:
            result = self._result()
            if result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result)
            self._wire = LibpqWire(self._pgconn)

    def fileno(self) -> int:
        """For poll()."""
        return self._pgconn.socket

    @property
    def wire(self) -> Wire:
        """Where the stream comes from, once it has been started."""
        assert self._wire is not None, "not started"
        return self._wire

    def send_status(
        self, received: Lsn, durable: Lsn, *, request_reply: bool, unix_time_us: int
    ) -> None:
        """Acknowledge `durable`; never waits: what the socket does not take goes with the next."""
        flushed = durable.wal
        message = _STATUS.pack(
            b"r", received.wal, flushed, flushed, unix_time_us - POSTGRES_EPOCH_US, request_reply
        )
        self.wire.send(message)

    def close(self) -> None:
        """End the session; the lock is free the moment the server sees it."""
        if self._wire is not None:
            self._wire.close()
        self._conn.close()

    def _is_plain(self) -> bool:
        """Whether what the socket carries is not encrypted."""
        if self._pgconn.ssl_in_use:
            return False
        # libpq tells of TLS only; of GSSAPI the server does.
        query = sql.SQL(
            "SELECT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_backend_pid()"
        )
        return self._query(query) == b"f"

    def _query(self, query: sql.Composable) -> bytes | None:
        try:
            result = self._execute(query)
        except psycopg.Error as error:
            raise source_error(error) from error
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise source_error(psycopg.errors.error_from_result(result))
        return result.get_value(0, 0)

    def _execute(self, command: sql.Composable) -> pq.abc.PGresult:
        """The result of one command. libpq's own PQexec would wait for a dead host for minutes."""
        self._send(command)
        return self._result()

    def _send(self, command: sql.Composable) -> None:
        self._pgconn.send_query(command.as_bytes())
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self._pgconn.flush():
            self._await(select.POLLOUT, deadline)

    def _result(self) -> pq.abc.PGresult:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        first: pq.abc.PGresult | None = None
        while True:
            while self._pgconn.is_busy():
                self._await(select.POLLIN, deadline)
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is None:
                assert first is not None
                return first
            if result.status == pq.ExecStatus.COPY_BOTH:
                return result
            first = first or result

    def _await(self, event: int, deadline: float) -> None:
        poller = select.poll()
        poller.register(self._pgconn.socket, event)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise SourceError("postgres does not answer", retry=True)


def _settings(sender_timeout_s: int) -> Mapping[str, str]:
    timeout = f"{sender_timeout_s}s"
    return {
        "wal_sender_timeout": timeout,
        # Frees the lock of a leader that stopped between winning it and START_REPLICATION.
        "idle_session_timeout": timeout,
        # These must be the server's: libpq's own keepalives protect the client only.
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": timeout,
        "logical_decoding_work_mem": "64MB",
    }
