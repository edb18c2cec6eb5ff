"""A publication of somebody else that has the buffers keeps nobody from emptying them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tailrace.capture.drains.passed_marks import PassedMarks
from tailrace.capture.drains.passed_rows import REFUSED_RETRY_S, PassedRows
from tailrace.control.health import check_health
from tailrace.control.tracking import Mode, claim
from tailrace.postgres.catalog import read_tables
from tailrace.storage import FileStore
from tests.capture.draining import SOURCE, drain_all, drainer, folded, source_rows
from tests.capture.drains.test_slot_cycle import begin, make_source, stream
from tests.capture.tracked import buffered_count, oid_of, track
from tests.server import VERSIONS, Servers

OTHERS = [
    b"CREATE PUBLICATION others FOR ALL TABLES",
    b"CREATE PUBLICATION others FOR TABLES IN SCHEMA tailrace_changes",
]


@pytest.fixture(params=VERSIONS)
def conn(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t is in trigger mode."""
    with source_servers(request.param).database() as database, database.connect() as connection:
        make_source(connection)
        yield connection


@pytest.mark.parametrize("what", OTHERS)
def test_drains_go_on_and_buffers_are_emptied_though_others_publish_them(
    conn: psycopg.Connection, store: FileStore, what: bytes
) -> None:
    conn.execute(what)
    with drainer(conn, store) as drains:
        for number in range(3):
            conn.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            assert drains.drain(lambda: None) is not None
            drains.delete(lambda: None)
        drains.delete(lambda: None)
    assert buffered_count(conn, "public.t") == 0
    assert folded(store) == source_rows(conn)


@pytest.mark.parametrize("what", OTHERS)
def test_beside_a_slot_buffers_are_emptied_though_others_publish_them(
    conn: psycopg.Connection, store: FileStore, what: bytes
) -> None:
    begin(conn, store)
    conn.execute(what)
    marks = PassedMarks(SOURCE)
    for number in range(3):
        conn.execute("INSERT INTO t VALUES (%s, 'x')", [number])
        conn.execute("UPDATE t SET v = 'y' WHERE id = %s", [number])
        durable = stream(conn, store)
        marks.turn(conn, durable, lambda: True)
        marks.turn(conn, stream(conn, store), lambda: True)
    assert buffered_count(conn, "public.t") == 0
    assert folded(store) == source_rows(conn)


def test_a_buffer_that_its_writers_hold_is_said_to_grow_and_emptied_later(
    conn: psycopg.Connection, store: FileStore
) -> None:
    (table,) = read_tables(conn, [oid_of(conn, "public.t")])
    claim(conn, table, source=SOURCE, mode=Mode.TRIGGER)
    conn.execute(OTHERS[0])
    now = [0.0]
    rows = PassedRows(clock=lambda: now[0])
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    shown = conn.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert shown is not None

    def delete() -> int:
        return sum(rows.delete(conn, [table.oid], shown[0]))

    with psycopg.connect(conn.info.dsn) as writer:
        writer.execute("INSERT INTO t VALUES (2, 'held')")
        assert delete() == 0
        assert rows.refused == {table.oid}
    (health,) = check_health(conn, SOURCE, transition_s_max=600, is_told=False)
    assert "its buffer cannot be emptied: publication others publishes deletes" in health.reason
    assert delete() == 0 and delete() == 0, "writers are not held up at every turn"
    now[0] += REFUSED_RETRY_S
    assert [delete(), delete()] == [0, 1]
    assert rows.refused == set()
    (health,) = check_health(conn, SOURCE, transition_s_max=600, is_told=False)
    assert "cannot be emptied" not in health.reason


def test_a_buffer_that_is_made_beside_such_a_publication_can_be_emptied_at_once(
    conn: psycopg.Connection, store: FileStore
) -> None:
    conn.execute(OTHERS[0])
    conn.execute("CREATE TABLE public.u (id int PRIMARY KEY)")
    track(conn, "public.u")
    conn.execute("INSERT INTO u VALUES (1)")
    drain_all(conn, store, deletes=True)
    assert buffered_count(conn, "public.u") == 0


def test_buffers_that_nobody_else_publishes_log_no_row_twice(conn: psycopg.Connection) -> None:
    query = """SELECT relreplident FROM pg_class WHERE relkind = 'r'
                AND relnamespace = 'tailrace_changes'::regnamespace"""
    assert conn.execute(query).fetchall() == [("d",)]


def test_the_rows_of_our_own_schema_can_be_told_apart(conn: psycopg.Connection) -> None:
    query = """SELECT relname::text FROM pg_class AS c
                WHERE relkind = 'r' AND relnamespace = 'tailrace'::regnamespace
                  AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"""
    assert conn.execute(query).fetchall() == []
