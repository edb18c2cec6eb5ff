"""The replication connection: leadership and stream on one session, so that they share one fate.

The advisory lock is taken on the session that will stream, before START_REPLICATION. Whoever loses
the connection loses both. The lock is polled, never waited for: a blocked session would hold back
vacuum, fall to statement_timeout, and could be given the lock when its host is long gone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg import pq, sql

from tailrace.errors import SourceError
from tailrace.model import Lsn
from tailrace.postgres.session import conninfo, pin, source_error
from tailrace.postgres.sqlstate import connect_error

SENDER_TIMEOUT_S: Final = 15
"""After a host is lost, this is how long its lock and its slot stay taken."""

_SETTINGS: Final = MappingProxyType(
    {
        "wal_sender_timeout": f"{SENDER_TIMEOUT_S}s",
        # Frees the lock of a leader that stopped between winning it and START_REPLICATION.
        "idle_session_timeout": f"{SENDER_TIMEOUT_S}s",
        # These must be the server's: libpq's own keepalives protect the client only.
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": f"{SENDER_TIMEOUT_S}s",
        "logical_decoding_work_mem": "64MB",
    }
)

# Seconds between Postgres' epoch and Unix'.
_STATUS: Final = struct.Struct(">cQQQqB")
_EPOCH_US: Final = 946_684_800_000_000


def lock_key(slot: str) -> int:
    """The advisory lock of a slot, as a signed 64-bit number."""
    digest = hashlib.sha256(f"tailrace leader of {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class ReplicationConnection:
    """One walsender session. Not thread-safe."""

    def __init__(self, dsn: str) -> None:
        target = conninfo(dsn, settings=_SETTINGS, replication=True)
        self._pgconn = pq.PGconn.connect(target.encode())
        if self._pgconn.status != pq.ConnStatus.OK:
            message = self._pgconn.get_error_message()
            self._pgconn.finish()
            raise connect_error(message, target)
        pin(self._pgconn)

    def try_lock(self, slot: str) -> bool:
        """Try to become the leader; the lock is held until this connection ends."""
        query = sql.SQL("SELECT pg_try_advisory_lock({})").format(sql.Literal(lock_key(slot)))
        return self._query(query) == b"t"

    def ping(self) -> None:
        """Keep the session, and so the lock, from being ended for idleness."""
        self._query(sql.SQL("SELECT 1"))

    def start(self, slot: str, publications: Sequence[str], position: Lsn) -> None:
        """Begin to stream everything that ends after `position`."""
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
        result = self._pgconn.exec_(command.as_bytes())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise psycopg.errors.error_from_result(result)
        self._pgconn.nonblocking = 1

    def fileno(self) -> int:
        """For poll()."""
        return self._pgconn.socket

    def read(self, bytes_max: int) -> tuple[list[memoryview], bool]:
        """The messages that are here, about `bytes_max` at most, and whether that was all."""
        pgconn = self._pgconn
        get = pgconn.get_copy_data
        messages: list[memoryview] = []
        size = 0
        while True:
            pgconn.consume_input()
            before = len(messages)
            size_before = size
            while size < bytes_max:
                count, message = get(1)
                if count <= 0:
                    break
                messages.append(message)
                size += count
            else:
                return messages, False
            if count < 0:
                if messages:
                    # Hand over what came; the end is found again by the next call.
                    return messages, True
                raise self._ended()
            if len(messages) == before and size == size_before:
                return messages, True

    def send_status(
        self, received: Lsn, durable: Lsn, *, request_reply: bool, unix_time_us: int
    ) -> None:
        """Acknowledge `durable`; small enough never to wait for the socket for long."""
        flushed = durable.wal
        message = _STATUS.pack(
            b"r", received.wal, flushed, flushed, unix_time_us - _EPOCH_US, request_reply
        )
        self._pgconn.put_copy_data(message)
        self._pgconn.flush()

    def close(self) -> None:
        """End the session; the lock is free the moment the server sees it."""
        self._pgconn.finish()

    def _ended(self) -> psycopg.Error | SourceError:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return psycopg.errors.error_from_result(result)
        return SourceError("postgres ended the stream", retry=True)

    def _query(self, query: sql.Composable) -> bytes | None:
        result = self._pgconn.exec_(query.as_bytes())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise source_error(psycopg.errors.error_from_result(result))
        return result.get_value(0, 0)
