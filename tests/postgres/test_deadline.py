"""A server that is stopped is not waited for, although its kernel still answers."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from tailrace.postgres.session import Connection, connect, source_error
from tests.server import Database

LARGE = b"x" * (1 << 20) + b"\n"


@contextmanager
def stopped(conn: Connection) -> Iterator[None]:
    """Its backend does nothing, and is not gone."""
    os.kill(conn.info.backend_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(conn.info.backend_pid, signal.SIGCONT)


@contextmanager
def breaks_off() -> Iterator[None]:
    """The block ends with an error that passes."""
    with pytest.raises(psycopg.OperationalError, match="has not answered") as caught:
        yield
    assert source_error(caught.value).retry


def test_f097_session_on_a_stopped_server_is_broken_off(database: Database) -> None:
    with (
        closing(connect(database.dsn, answer_s=1.0)) as conn,
        stopped(conn),
        breaks_off(),
        # Its end is not waited for either.
        conn.transaction(),
    ):
        conn.execute("SELECT 1")


def test_f097_copy_into_a_stopped_server_is_broken_off(database: Database) -> None:
    with closing(connect(database.dsn, answer_s=1.0)) as conn:
        conn.execute("CREATE TEMPORARY TABLE lines (line text)")
        with (
            stopped(conn),
            breaks_off(),
            conn.transaction(),
            conn.cursor().copy("COPY lines FROM STDIN") as copy,
        ):
            for _ in range(1000):
                copy.write(LARGE)


def test_f097_what_is_sent_to_nobody_is_not_sent_for_long(database: Database) -> None:
    with (
        closing(connect(database.tcp_dsn)) as conn,
        socket.socket(fileno=os.dup(conn.fileno())) as end,
    ):
        timeout_ms = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout_ms == 90_000
