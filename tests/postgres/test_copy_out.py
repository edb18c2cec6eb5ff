"""Rows of a COPY, whichever way they are read: all of them, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from psycopg import pq, sql

from tailrace.postgres import copy_out as module
from tailrace.postgres.copy_out import copy_out
from tailrace.postgres.session import Connection

BLOCK = 4096


@pytest.fixture(params=["socket", "libpq"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libpq":

        def by_libpq(
            pgconn: pq.abc.PGconn, text: bytes, size: int, waiting: module.Waiting | None
        ) -> Iterator[pa.BinaryArray]:
            return module._by_libpq(pgconn, text, size, waiting)

        monkeypatch.setattr(module, "_by_socket", by_libpq)


def read(conn: Connection, query: str, block_bytes: int = BLOCK) -> list[bytes]:
    copy = sql.SQL("COPY ({}) TO STDOUT").format(sql.SQL(query))
    return [
        row.as_py()
        for block in copy_out(conn, copy, block_bytes=block_bytes)
        for row in block
        if row.as_py() is not None
    ]


def expected(conn: Connection, query: str) -> list[bytes]:
    with conn.cursor().copy(sql.SQL("COPY ({}) TO STDOUT").format(sql.SQL(query))) as copy:
        return [bytes(row)[:-1] for row in copy]


QUERIES = [
    "SELECT g, g * 1.5, 'row ' || g FROM generate_series(1, 5000) AS g",
    "SELECT g WHERE g > 1 FROM generate_series(1, 1) AS g".replace(" WHERE g > 1", ""),
    "SELECT 1 WHERE false",
    # A message of 10 bytes has a newline in its length; so have those of 2,560 to 2,815.
    "SELECT 'd1234' FROM generate_series(1, 3000)",
    "SELECT repeat('d', g) FROM generate_series(0, 3000) AS g",
    "SELECT NULL, '', E'\\\\ \\n \\t \\r \\b', 'ü😀' FROM generate_series(1, 100)",
    "SELECT '' FROM generate_series(1, 1000)",
    "SELECT repeat('x', 1000000), g FROM generate_series(1, 3) AS g",
]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("block_bytes", [1, 4096, 1 << 20])
def test_every_row_comes_as_it_was_sent(admin: Connection, query: str, block_bytes: int) -> None:
    assert read(admin, query, block_bytes) == expected(admin, query)
    assert admin.execute("SELECT 1").fetchone() == (1,), "the session can be used again"


@pytest.mark.usefixtures("way")
def test_blocks_are_no_larger_than_they_must_be(admin: Connection) -> None:
    query = sql.SQL("COPY (SELECT g FROM generate_series(1, 100000) AS g) TO STDOUT")
    sizes = [block.nbytes for block in copy_out(admin, query, block_bytes=1 << 14)]
    assert len(sizes) > 3 and max(sizes) < 1 << 20


@pytest.mark.usefixtures("way")
def test_blocks_end_at_the_same_rows_whenever_they_are_read(admin: Connection) -> None:
    rows = "SELECT g, repeat('x', g % 300) FROM generate_series(1, 100000) AS g"
    query = sql.SQL("COPY ({}) TO STDOUT").format(sql.SQL(rows))
    every = [[len(block) for block in copy_out(admin, query, block_bytes=1 << 20)] for _ in "abc"]
    assert len(every[0]) > 10
    assert every[0] == every[1] == every[2]


@pytest.mark.usefixtures("way")
def test_who_is_told_that_he_waits_waits_for_as_long_as_the_server_takes(
    admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    monkeypatch.setattr(module, "POLL_S", 0.05)
    calls: list[int] = []
    with psycopg.connect(admin.info.dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(77)")

        def waiting() -> None:
            calls.append(1)
            if len(calls) == 5:
                other.execute("SELECT pg_advisory_unlock(77)")

        query = sql.SQL("COPY (SELECT 1, pg_advisory_xact_lock(77)) TO STDOUT")
        (block,) = copy_out(admin, query, block_bytes=BLOCK, waiting=waiting)
    assert block.to_pylist() == [b"1\t"]
    assert len(calls) >= 5


@pytest.mark.usefixtures("way")
def test_an_error_before_or_between_rows_is_that_of_postgres(admin: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        read(admin, "SELECT * FROM nothing.there")
    assert admin.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.errors.DivisionByZero):
        read(admin, "SELECT 1 / (4000 - g) FROM generate_series(1, 5000) AS g")
    assert admin.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.usefixtures("way")
def test_a_session_that_is_ended_is_an_error_and_never_the_end_of_the_rows(
    admin: Connection,
) -> None:
    query = "SELECT g, pg_terminate_backend(CASE g WHEN 3000 THEN pg_backend_pid() END) FROM "
    with pytest.raises(psycopg.OperationalError):
        read(admin, query + "generate_series(1, 50000) AS g")
