"""A bare replication session, for tests that need a slot in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import pq

from tailrace.postgres.session import conninfo


@contextmanager
def streaming(dsn: str, slot: str, *, application_name: str) -> Iterator[pq.abc.PGconn]:
    """A session that streams from the slot."""
    target = conninfo(dsn, application_name=application_name, replication=True)
    pgconn = pq.PGconn.connect(target.encode())
    try:
        assert pgconn.status == pq.ConnStatus.OK, pgconn.get_error_message()
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 '
            f"(proto_version '1', publication_names '{slot}')"
        )
        result = pgconn.exec_(command.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.get_error_message()
        yield pgconn
    finally:
        pgconn.finish()
