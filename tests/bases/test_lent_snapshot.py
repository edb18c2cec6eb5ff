"""Bases without a slot: the snapshot is a drain's, and stands where that drain stands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tailrace.capture.drains import drain
from tailrace.capture.lent_snapshot import LentSnapshotHolder
from tailrace.control.requests import ask, open_requests
from tailrace.control.tracking import Mode, claim
from tailrace.errors import SourceError
from tailrace.log.bases import newest_bases
from tailrace.log.wanted import WantedBase, want_base
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.server import insert_position
from tailrace.postgres.snapshot import Patience
from tailrace.storage import FileStore, Store
from tests.bases.oracle import assert_equal
from tests.bases.taking import oid_of, take
from tests.capture.draining import SOURCE, begin_log, drainer, writers
from tests.capture.tracked import track
from tests.server import VERSIONS, Servers


@pytest.fixture(params=VERSIONS)
def conn(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t has rows and is in trigger mode."""
    with source_servers(request.param).database() as database, database.connect() as connection:
        connection.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 2000) AS n")
        track(connection, "public.t")
        (table,) = tables_matching(connection, ["public.t"])
        claim(connection, table, source=SOURCE, mode=Mode.TRIGGER)
        yield connection


@contextmanager
def draining(conn: psycopg.Connection, store: Store) -> Iterator[None]:
    """A leader that drains again and again."""
    stop = threading.Event()
    begin_log(conn, store)

    def lead() -> None:
        with drainer(conn, store) as drains:
            while not stop.wait(0.02):
                drains.drain(lambda: None)
                drains.delete(lambda: None)
            drains.drain(lambda: None)

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)


def test_a_base_and_the_drains_after_it_are_the_source(
    conn: psycopg.Connection, store: FileStore
) -> None:
    oid = oid_of(conn, "public.t")
    with draining(conn, store), writers(conn.info.dsn, 4):
        for _ in range(3):
            (result,) = take(conn.info.dsn, store, oid)
            assert result.error is None
    assert_equal(store, conn, "public.t")
    assert newest_bases(store)[oid].row_count > 1900
    assert open_requests(conn, SOURCE) == []


def test_who_asks_for_a_snapshot_while_nobody_drains_is_told(
    conn: psycopg.Connection, store: FileStore
) -> None:
    begin_log(conn, store)
    impatient = Patience(try_ms=100, all_s=0.2, say=lambda _: None, go_on=lambda: None)
    with (
        LentSnapshotHolder(conn.info.dsn, application_name="test", source=SOURCE) as holder,
        pytest.raises(SourceError, match="no drain has lent"),
    ):
        holder.hold(impatient)
    assert open_requests(conn, SOURCE) == []


def test_a_leader_does_not_wait_for_ever_for_one_who_asked_and_is_gone(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.drains.answering.LEND_S", 0.1)
    ask(conn, source=SOURCE, by="nobody")
    with drainer(conn, store) as drains:
        assert drains.drain(lambda: None) is not None
        assert drains.drain(lambda: None) is None
    assert open_requests(conn, SOURCE) == []


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets something happen once, while a drain that has its snapshot reads the buffers."""
    monkeypatch.setattr("tailrace.capture.drains.answering.LEND_S", 0.1)

    def plan(event: Callable[[], object]) -> None:
        events = [event]
        read: Callable[..., object] = drain.rows_outstanding

        def reading(*arguments: object) -> object:
            if events:
                events.pop()()
            return read(*arguments)

        monkeypatch.setattr(drain, "rows_outstanding", reading)

    return plan


def test_who_asks_after_the_snapshot_of_a_drain_is_lent_that_of_the_next(
    conn: psycopg.Connection,
    store: FileStore,
    meanwhile: Callable[[Callable[[], object]], None],
) -> None:
    """He may know of what the older one does not show: a table that was taken up in between."""
    begin_log(conn, store)
    meanwhile(lambda: ask(conn, source=SOURCE, by="late"))
    with drainer(conn, store) as drains:
        drains.drain(lambda: None)
        assert len(open_requests(conn, SOURCE)) == 1
        drains.drain(lambda: None)
    assert open_requests(conn, SOURCE) == []


def test_a_snapshot_from_before_a_base_was_found_missing_is_not_lent_as_one_from_after_it(
    conn: psycopg.Connection,
    store: FileStore,
    meanwhile: Callable[[Callable[[], object]], None],
) -> None:
    begin_log(conn, store)
    oid = oid_of(conn, "public.t")

    def leave_gap() -> None:
        conn.execute("INSERT INTO t VALUES (0, 'unseen')")
        want_base(store, WantedBase(oid, insert_position(conn), "a gap"))

    meanwhile(leave_gap)
    ask(conn, source=SOURCE, by="early")
    with drainer(conn, store) as drains:
        drains.drain(lambda: None)
        assert len(open_requests(conn, SOURCE)) == 1
        drains.drain(lambda: None)
    assert open_requests(conn, SOURCE) == []
