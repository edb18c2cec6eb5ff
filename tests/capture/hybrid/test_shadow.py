"""The comparison of two captures leaves nothing behind, and takes no more than it may."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tailrace.capture.buffers.shapes import BufferShapes
from tailrace.capture.hybrid import shadow
from tailrace.capture.hybrid.shadow import Shadow
from tailrace.errors import SourceError
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.frames import Frames
from tests.capture.drains.test_slot_cycle import make_source
from tests.capture.running import NAMES, wait_until
from tests.capture.tracked import oid_of
from tests.server import VERSIONS, Servers


@pytest.fixture
def conn(source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t is in trigger mode and its buffer published."""
    with source_servers(VERSIONS[0]).database() as database, database.connect() as connection:
        make_source(connection)
        yield connection


def begin(conn: psycopg.Connection) -> Shadow:
    """That of public.t."""
    (table,) = read_tables(conn, [oid_of(conn, "public.t")])
    return Shadow(conn.info.dsn, NAMES, table, BufferShapes(conn.info.dsn))


def slot_count(conn: psycopg.Connection) -> int:
    """How many slots of comparisons there are in this database."""
    query = """SELECT count(*) FROM pg_replication_slots
                WHERE slot_name LIKE 'tailrace\\_shadow%' AND database = current_database()"""
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_a_transaction_that_is_too_large_is_let_pass_and_the_others_are_compared(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shadow, "COMPARED_BYTES_MAX", 20_000)
    conn.execute("ALTER PUBLICATION tailrace_main_buffers SET (publish = 'insert')")
    compared = begin(conn)
    sizes: list[int] = []
    compare = Shadow._compare

    def measured(self: Shadow, frames: Frames) -> str:
        sizes.append(frames.data_bytes)
        return compare(self, frames)

    monkeypatch.setattr(Shadow, "_compare", measured)
    conn.execute("INSERT INTO t SELECT n, 'first' FROM generate_series(1, 10) AS n")
    conn.execute("INSERT INTO t SELECT n, 'large' FROM generate_series(11, 3000) AS n")
    conn.execute("UPDATE t SET v = 'last' WHERE id <= 10")
    assert compared.look() == ""
    assert compared.compared == 20
    assert max(sizes) < 20_000
    assert caplog.text.count("transaction is too large to be compared table=public.t") == 1
    compared.close()
    wait_until(lambda: slot_count(conn) == 0)


def test_the_slot_of_a_leader_that_was_stopped_is_ended_by_the_server(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "IDLE_TIMEOUT", "200ms")
    stopped = begin(conn)
    wait_until(lambda: slot_count(conn) == 0)
    with pytest.raises(SourceError):
        stopped.look()
    stopped.close()
