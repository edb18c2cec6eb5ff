"""A table that is taken up again needs a base that has whoever wrote it until then."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from tailrace.capture.hybrid.intake import TriggerIntake
from tailrace.capture.membership import Membership
from tailrace.capture.roll import rolls_of
from tailrace.capture.watch import begin_watch
from tailrace.control.schema import remove
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.model import Lsn
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection, connect
from tailrace.storage import FileStore, Store
from tests.capture.draining import leading
from tests.capture.running import NAMES, Running, hybrid, settings, wait_until
from tests.capture.tracked import oid_of
from tests.server import Database

WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 't'::regclass)"


def leave_out(database: Database, source: psycopg.Connection, store: FileStore) -> None:
    """The table was captured, and is not any more; its base is in the log."""
    with Running(settings(database.dsn, "public.t", hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with Running(settings(database.dsn, "public.other", hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()


def marked(source: psycopg.Connection, store: FileStore) -> Lsn:
    """From where on a base is wanted."""
    wanted = wanted_bases(store, newest_positions(store))[oid_of(source, "public.t")]
    return Lsn(wanted.position.wal)


def by_triggers(database: Database, store: FileStore) -> None:
    with connect(database.dsn) as conn, leading(database.dsn) as pid:
        (table,) = tables_matching(conn, ["public.t"])
        rules = hybrid("trigger", lock_timeout_ms=60_000).rules
        assert TriggerIntake(store, NAMES, pid).take_up(conn, table, rules) is None


def by_wal(database: Database, store: FileStore) -> None:
    with connect(database.dsn) as conn:
        (table,) = tables_matching(conn, ["public.t"])
        assert Membership(conn, store, rolls_of(NAMES)[0]).take_up_one(table) is None


def test_table_is_taken_up_by_triggers_though_another_source_has_removed_the_schema_meanwhile(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, "public.t", hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
    source.execute("CREATE TABLE u (id int PRIMARY KEY)")
    rules = hybrid("trigger").rules
    with connect(database.dsn) as conn, leading(database.dsn) as pid:
        intake = TriggerIntake(store, NAMES, pid)
        assert intake.has_schema(conn)
        remove(conn)
        (table,) = tables_matching(conn, ["public.u"])
        assert intake.take_up(conn, table, rules) is None


@pytest.mark.parametrize("take_up", [by_triggers, by_wal])
def test_whoever_ends_while_the_lock_is_waited_for_is_in_the_next_base(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    take_up: Callable[[Database, FileStore], None],
) -> None:
    monkeypatch.setattr("tailrace.capture.membership.LOCK_TIMEOUT_MS", 60_000)
    leave_out(database, source, store)
    taking = threading.Thread(target=take_up, args=(database, store))
    with database.connect() as writer:
        with writer.transaction():
            writer.execute("INSERT INTO t VALUES (1, 'unseen')")
            taking.start()
            wait_until(lambda: source.execute(WAITS).fetchone() == (True,))
            open_at = insert_position(source)
        taking.join(60)
    assert marked(source, store) > open_at


def test_whoever_ends_while_a_table_is_published_beside_writers_is_in_the_next_base(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source.execute("INSERT INTO t VALUES (1, 'there')")
    leave_out(database, source, store)
    written = []

    def write_after(conn: Connection, store: Store, oid: int) -> bool:
        is_asked_for = begin_watch(conn, store, oid)
        source.execute("INSERT INTO t VALUES (2, 'unseen')")
        written.append(insert_position(source))
        return is_asked_for

    monkeypatch.setattr("tailrace.capture.membership.begin_watch", write_after)
    by_wal(database, store)
    assert marked(source, store) >= written[0]
