"""The session that holds the lock lives as long as its leader gives signs of life; no longer."""

from __future__ import annotations

import time

import psycopg
import pytest

from tailrace.capture.keeper import Keeper
from tailrace.errors import SourceError
from tailrace.postgres.replication import ReplicationConnection
from tailrace.storage import FileStore
from tests.capture.oracle import assert_equal
from tests.capture.running import Running, settings, wait_caught_up, wait_until
from tests.log.faulty_store import WatchedStore
from tests.server import Database

SLOT = "tailrace_main"


def test_a_store_that_is_slow_to_tell_its_tip_does_not_cost_the_lock(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    told = settings(database.dsn, sender_timeout_s=3)
    with Running(told, store) as first:
        first.wait_for_stream()

    def be_slow(what: str, key: str) -> None:
        if what in ("get", "list") and not capture.value("received_lsn"):
            time.sleep(1.5)

    # Six looks at the store take three times as long as the server keeps an idle session.
    capture = Running(told, WatchedStore(store, before=be_slow))
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
        assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


@pytest.fixture
def connection(database: Database) -> ReplicationConnection:
    return ReplicationConnection(database.dsn, sender_timeout_s=1)


def test_a_leader_that_hangs_before_it_streams_loses_the_lock(
    database: Database, connection: ReplicationConnection
) -> None:
    other = ReplicationConnection(database.dsn)
    try:
        assert connection.try_lock(SLOT)
        with Keeper(connection, interval_s=0.2, patience_s=0.5):
            wait_until(lambda: other.try_lock(SLOT))
    finally:
        connection.close()
        other.close()


def test_a_lost_session_is_told_at_the_next_sign_of_life(
    source: psycopg.Connection, connection: ReplicationConnection
) -> None:
    def renew_again_and_again(keeper: Keeper) -> None:
        for _ in range(3000):
            keeper.renew()
            time.sleep(0.01)

    try:
        with pytest.raises(SourceError), Keeper(connection, interval_s=0.05) as keeper:
            source.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE backend_type = 'walsender'"
            )
            renew_again_and_again(keeper)
    finally:
        connection.close()
