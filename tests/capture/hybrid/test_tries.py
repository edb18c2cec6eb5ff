"""Tries for locks: so many, with pauses, within the time of a turn, and no longer than wanted."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from tailrace.capture.hybrid.tries import GROWTH, TURN_S_MAX, Tries
from tailrace.errors import NoProspect, SourceError
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.session import connect
from tests.capture.running import NAMES
from tests.server import Database


class Hours:
    """A clock that stands still but for who sleeps, and for who waits for a lock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds

    def tries(self) -> Tries:
        return Tries(clock=lambda: self.now_s, sleep=self.sleep)

    def in_vain(self, wait_ms: int) -> None:
        """A lock that is not won."""
        self.now_s += wait_ms / 1000
        raise SourceError("it is being written", retry=True)


@pytest.fixture
def hours() -> Hours:
    return Hours()


def tables(conn: psycopg.Connection, count: int) -> list[TableInfo]:
    """So many that there might be, by their oids."""
    (table,) = tables_matching(conn, ["public.t"])
    return [replace(table, oid=oid) for oid in range(1, count + 1)]


def always() -> bool:
    return True


def without_prospect(wait_ms: int) -> None:
    raise NoProspect(f"{wait_ms} ms would not do")


def test_a_lock_that_is_not_waited_for_is_not_paused_for_either(hours: Hours) -> None:
    tries = hours.tries()
    tried: list[int] = []

    def act(wait_ms: int) -> None:
        tried.append(wait_ms)
        if wait_ms < 500:
            without_prospect(wait_ms)

    tries.often(act, lock_timeout_ms=200)
    assert tried == [200, 200, 400, 600]
    with pytest.raises(NoProspect):
        tries.often(without_prospect, lock_timeout_ms=200)
    assert hours.slept_s == 0


def test_writers_have_more_time_than_the_tries_that_hold_them_up(hours: Hours) -> None:
    tries = hours.tries()
    with pytest.raises(SourceError, match="being written"):
        tries.often(hours.in_vain, lock_timeout_ms=200)
    waited_s = 0.2 * sum(GROWTH)
    assert waited_s - 1.0 <= hours.slept_s == pytest.approx(hours.now_s - waited_s)


def test_many_tables_that_are_written_share_a_turn_and_each_has_its_own(
    source: psycopg.Connection, hours: Hours
) -> None:
    tries, tried, many = hours.tries(), list[int](), tables(source, 300)
    for _ in range(300):
        began_s = hours.now_s
        for table in tries.begin_turn(many, always):
            if tries.has_time(table.oid):
                tried.append(table.oid)
                with pytest.raises(SourceError):
                    tries.often(hours.in_vain, lock_timeout_ms=200)
        assert hours.now_s - began_s < 2 * TURN_S_MAX
    # Each as often as any other, but for those whose turn comes next.
    counts = {oid: tried.count(oid) for oid in range(1, 301)}
    assert max(counts.values()) - min(counts.values()) <= 1 <= min(counts.values())


def test_tables_that_are_gone_by_the_next_turn_keep_up_nobody(
    source: psycopg.Connection, hours: Hours
) -> None:
    tries = hours.tries()
    assert [table.oid for table in tries.begin_turn(tables(source, 3), always)] == [1, 2, 3]
    with pytest.raises(SourceError):
        tries.often(hours.in_vain, lock_timeout_ms=2_000)
    assert [tries.has_time(oid) for oid in (2, 3)] == [False, False]
    assert [table.oid for table in tries.begin_turn(tables(source, 3), always)] == [2, 3, 1]
    assert [table.oid for table in tries.begin_turn(tables(source, 3), always)] == [1, 2, 3]
    with pytest.raises(SourceError):
        tries.often(hours.in_vain, lock_timeout_ms=2_000)
    assert not tries.has_time(3)
    assert [table.oid for table in tries.begin_turn(tables(source, 2), always)] == [1, 2]


def test_who_is_told_to_stop_neither_tries_nor_pauses_any_more(
    source: psycopg.Connection, hours: Hours
) -> None:
    tries, tried = hours.tries(), list[int]()
    tries.begin_turn(tables(source, 1), lambda: not tried)

    def act(wait_ms: int) -> None:
        tried.append(wait_ms)
        hours.in_vain(wait_ms)

    with pytest.raises(SourceError, match="being written"):
        tries.often(act, lock_timeout_ms=200)
    assert (tried, hours.slept_s) == ([200], 0)
    assert not tries.has_time(1)


def test_a_table_that_an_idle_transaction_holds_takes_no_time_of_the_turn(
    database: Database, source: psycopg.Connection, hours: Hours
) -> None:
    with connect(database.dsn) as conn, database.connect() as holder, holder.transaction():
        holder.execute("INSERT INTO t VALUES (1, 'held')")
        source.execute("SELECT pg_sleep(0.05)")
        (table,) = tables_matching(conn, ["public.t"])

        def lock(wait_ms: int) -> None:
            with Barrier(conn, NAMES.slot, conn.info.backend_pid, 1, wait_ms).locked(table):
                pytest.fail("it is held")

        with pytest.raises(NoProspect, match=r"public\.t is being written: pid"):
            hours.tries().often(lock, lock_timeout_ms=1)
    assert hours.slept_s == 0
