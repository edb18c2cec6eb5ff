"""Exact snapshots, forced into the corners of how Postgres makes a slot.

Making a slot waits twice: for the transactions that run when it begins, then for those that run
when the first are over. What happens meanwhile is in the test's hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from tailrace.postgres.session import connect
from tailrace.postgres.snapshot import Patience, Snapshot, SnapshotHolder, import_snapshot
from tests.capture.running import wait_until
from tests.server import VERSIONS, Database, ServerFactory


@contextmanager
def _writer(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO t VALUES (0)")
        yield session


@contextmanager
def _held(
    database: Database, go_on: Callable[[], None], meanwhile: Callable[[], None]
) -> Iterator[Future[Snapshot]]:
    """A snapshot that is being taken; `meanwhile` runs in its second wait."""
    patience = Patience(try_ms=120_000, all_s=240.0, say=lambda _: None, go_on=go_on)
    with (
        SnapshotHolder(database.dsn, application_name="tailrace base") as holder,
        ThreadPoolExecutor() as pool,
        _writer(database) as first,
    ):
        held = pool.submit(holder.hold, patience)
        _wait_for_waiter(database, first)
        with _writer(database) as second:
            first.execute("ROLLBACK")
            _wait_for_waiter(database, second)
            meanwhile()
            second.execute("ROLLBACK")
        yield held


def _wait_for_waiter(database: Database, writer: psycopg.Connection) -> None:
    (xid,) = writer.execute("SELECT pg_current_xact_id()::xid").fetchone() or ("",)
    query = "SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid = %s::text::xid"
    with database.connect() as watcher:
        wait_until(lambda: watcher.execute(query, [xid]).fetchone() is not None)


def _shown(database: Database, snapshot: Snapshot) -> list[int]:
    with connect(database.dsn) as reader:
        import_snapshot(reader, snapshot.name)
        return [row[0] for row in reader.execute("SELECT id FROM public.t ORDER BY id").fetchall()]


def test_f019_a_snapshot_that_ends_before_it_begins_is_held(source: Database) -> None:
    """All that began while the slot was made rolled back, and one is still open."""
    with source.connect() as admin:
        admin.execute("CREATE TABLE t (id int)")
        admin.execute("INSERT INTO t VALUES (7)")
    with source.connect() as late:

        def open_one() -> None:
            late.execute("BEGIN")
            late.execute("INSERT INTO t VALUES (0)")

        with _held(source, lambda: None, open_one) as held:
            assert _shown(source, held.result(timeout=240)) == [7]


@pytest.mark.parametrize("version", VERSIONS)
def test_f024_nobody_reads_before_what_the_snapshot_shows_has_come_to_its_end(
    postgres_server: ServerFactory, version: int
) -> None:
    """A commit that waits for a standby is in the WAL, and for everybody else it still runs."""
    server = postgres_server(
        {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}, version=version
    )
    waiting = threading.Event()
    tries: list[None] = []

    def go_on() -> None:
        tries.append(None)
        if len(tries) > 1:
            waiting.set()

    with server.database() as database, database.connect() as admin, database.connect() as late:
        admin.execute("CREATE TABLE t (id int)")
        late.execute("SET synchronous_commit TO on")
        commit = threading.Thread(target=late.execute, args=["INSERT INTO t VALUES (7)"])

        def commit_in_part() -> None:
            commit.start()
            query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_until(lambda: admin.execute(query).fetchone() is not None)

        with _held(database, go_on, commit_in_part) as held:
            wait_until(lambda: waiting.is_set() or held.done(), patience_s=240)
            was_done = held.done()
            admin.execute("ALTER SYSTEM SET synchronous_standby_names TO ''")
            admin.execute("SELECT pg_reload_conf()")
            commit.join()
            assert not was_done
            assert _shown(database, held.result(timeout=240)) == [7]


def test_a_snapshot_too_large_for_its_slot_is_tried_again(source: Database) -> None:
    """Savepoints rolled back beside an old transaction fill it."""
    tries: list[None] = []
    with source.connect() as admin, source.connect() as old:
        admin.execute("CREATE TABLE t (id int)")

        def go_on() -> None:
            tries.append(None)
            if len(tries) > 1:
                old.execute("ROLLBACK")

        def roll_back_savepoints() -> None:
            old.execute("BEGIN")
            old.execute("INSERT INTO t VALUES (0)")
            admin.execute(_SAVEPOINTS)
            admin.execute("INSERT INTO t VALUES (7)")

        with _held(source, go_on, roll_back_savepoints) as held:
            assert _shown(source, held.result(timeout=240)) == [7]
    assert len(tries) == 2


_SAVEPOINTS = """
DO $$
BEGIN
    FOR i IN 1..20000 LOOP
        BEGIN
            INSERT INTO t VALUES (0);
            RAISE 'back';
        EXCEPTION WHEN raise_exception THEN
        END;
    END LOOP;
END $$
"""
