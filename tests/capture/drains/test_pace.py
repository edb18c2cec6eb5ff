"""However long a transaction stays open, buffers are not gone through end to end all the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tailrace.capture.drains import drain, pace
from tailrace.capture.drains.outstanding import Outstanding
from tailrace.capture.drains.pace import RESTS, SMALL_BYTES, Pace, rest_s
from tailrace.capture.drains.passed_marks import PassedMarks
from tailrace.model import Lsn
from tailrace.storage import FileStore
from tests.capture.draining import SOURCE, begin_log, drainer, folded, source_rows
from tests.capture.running import Running, hybrid, settings
from tests.capture.tracked import buffer_bytes, buffered_count, track
from tests.server import VERSIONS, Servers


class Clock:
    """Tells the seconds that a test has let pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        """A second passes."""
        self.now += 1.0


@pytest.fixture
def conn(source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t is in trigger mode."""
    with source_servers(VERSIONS[0]).database() as database, database.connect() as connection:
        connection.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
        track(connection, "public.t")
        yield connection


@pytest.fixture
def pinned(conn: psycopg.Connection) -> Iterator[None]:
    """Somebody reads for hours: Postgres must keep what is deleted meanwhile."""
    with psycopg.connect(conn.info.dsn) as report:
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT FROM t")
        yield


def fill(conn: psycopg.Connection, first: int, end: int) -> None:
    """Some rows of a few hundred bytes."""
    query = "INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(%s, %s - 1) AS n"
    conn.execute(query, (first, end))


def test_f073_a_look_in_vain_is_followed_by_four_times_its_length_of_rest() -> None:
    clock = Clock()
    looks = Pace(clock)
    assert looks.is_due
    with looks.looking():
        clock.now += 3
    looks.rest(wanted_bytes=0, passed_bytes=SMALL_BYTES + 1)
    clock.now += RESTS * 3 - 1
    assert not looks.is_due
    clock.tick()
    assert looks.is_due


def test_a_look_that_is_worth_it_or_small_is_followed_by_no_rest() -> None:
    """Else a writer would overtake the drains who is a fifth as fast."""
    assert rest_s(60.0, wanted_bytes=1 << 30, passed_bytes=4 << 30) == 0.0
    assert rest_s(60.0, wanted_bytes=0, passed_bytes=SMALL_BYTES) == 0.0
    assert rest_s(60.0, wanted_bytes=1 << 29, passed_bytes=4 << 30) == RESTS * 30.0


def test_f073_a_drain_past_rows_that_must_be_kept_rests_and_one_that_is_busy_does_not(
    conn: psycopg.Connection, store: FileStore, pinned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SMALL_BYTES", 0)
    clock = Clock()
    begin_log(conn, store)
    with drainer(conn, store) as drains:
        drains.pace = Pace(clock)
        fill(conn, 0, 3000)
        drains.drain(clock.tick)
        assert drains.delete(clock.tick) == 3000
        assert drains.pace.is_due, "all that it has read was wanted"
        assert buffer_bytes(conn, "public.t") > 1_000_000
        conn.execute("INSERT INTO t VALUES (3000, 'late')")
        began = clock.now
        drains.drain(clock.tick)
        assert drains.delete(clock.tick) == 1
        took = clock.now - began
        assert took > 0
        clock.now += 0.9 * RESTS * took
        assert not drains.pace.is_due
        clock.now += 0.1 * RESTS * took
        assert drains.pace.is_due
    assert folded(store) == source_rows(conn)


def test_f073_buffers_are_not_looked_at_if_nothing_was_committed_since(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, begin = drain.rows_outstanding, drain._begin_reading
    looks, snapshots = [], []

    def counted(
        conn: psycopg.Connection, buffers: dict[int, int], outstanding: Outstanding
    ) -> dict[int, int]:
        looks.append(outstanding)
        return look(conn, buffers, outstanding)

    def noted(conn: psycopg.Connection) -> str:
        snapshots.append(begin(conn))
        return snapshots[-1]

    monkeypatch.setattr(drain, "rows_outstanding", counted)
    monkeypatch.setattr(drain, "_begin_reading", noted)
    with drainer(conn, store) as drains:
        for _ in range(20):
            drains.drain(lambda: None)
        assert len(looks) == len(set(snapshots)) < 20
        conn.execute("INSERT INTO t VALUES (1, 'x')")
        assert drains.drain(lambda: None) is not None


def test_f073_a_leader_does_not_drain_before_it_is_due(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, due = [], threading.Event()
    due.set()

    def is_due(self: Pace) -> bool:
        asked.append(self)
        return due.is_set()

    monkeypatch.setattr(Pace, "is_due", property(is_due))
    told = settings(conn.info.dsn, "public.t", hybrid=hybrid("trigger"))
    with Running(told, store) as capture:
        capture.wait_until(lambda: len(asked) > 2)
        due.clear()
        seen = len(asked)
        capture.wait_until(lambda: len(asked) > seen + 1)
        conn.execute("INSERT INTO t VALUES (1, 'x')")
        seen = len(asked)
        capture.wait_until(lambda: len(asked) > seen + 2)
        assert buffered_count(conn, "public.t") == 1 and folded(store) == {}
        due.set()
        capture.wait_until(lambda: folded(store) == source_rows(conn))


def test_f073_marks_and_deletes_beside_a_slot_rest_as_well(
    conn: psycopg.Connection, pinned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SMALL_BYTES", 0)
    clock, everything = Clock(), Lsn(1 << 55)
    fill(conn, 0, 3000)
    marks = PassedMarks(SOURCE, Pace(clock))
    with psycopg.connect(conn.info.dsn, autocommit=True) as closed:
        pass

    def go_on() -> bool:
        clock.tick()
        return True

    assert marks.turn(conn, everything, go_on) == 0
    assert marks.turn(conn, everything, go_on) == 3000
    conn.execute("INSERT INTO t VALUES (3000, 'late')")
    began = clock.now
    assert marks.turn(conn, everything, go_on) == 0
    assert marks.turn(conn, everything, go_on) == 1
    took = clock.now - began
    clock.now += 0.9 * RESTS * took
    assert marks.turn(closed, everything, go_on) == 0, "the source is not asked"
    clock.now += 0.1 * RESTS * took
    with pytest.raises(psycopg.OperationalError):
        marks.turn(closed, everything, go_on)
