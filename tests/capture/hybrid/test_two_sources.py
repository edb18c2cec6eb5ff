"""Two sources of one database: from the WAL they share tables, by triggers each has its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tailrace.capture import Settings
from tailrace.capture.hybrid.on_record import Task
from tailrace.capture.hybrid.tables import HybridTables
from tailrace.control.schema import migrate
from tailrace.control.tracking import Mode, set_mode
from tailrace.model import Lsn
from tailrace.postgres.buffer import buffer
from tailrace.postgres.quote import SourceNames, statement
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import connect
from tailrace.postgres.slot import drop_slot, read_slot
from tailrace.storage import FileStore
from tests.capture.draining import leading
from tests.capture.hybrid.test_handover import alerts, modes, trigger_states
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import NAMES, Running, hybrid, published, settings, wait_caught_up
from tests.capture.tracked import buffered_count, oid_of, track
from tests.server import Database

pytestmark = pytest.mark.usefixtures("quickly")

OTHER = SourceNames.of("other")
SOURCES = "SELECT source FROM tailrace.change_tracking WHERE table_name = %s"


@pytest.fixture
def other_store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "other")


def of_other(told: Settings) -> Settings:
    return replace(told, duties=replace(told.duties, names=OTHER))


def source_of(source: psycopg.Connection, table: str) -> str | None:
    """Whose row a table has."""
    row = source.execute(SOURCES, [table]).fetchone()
    return None if row is None else str(row[0])


def wait_confirmed(
    capture: Running, source: psycopg.Connection, names: SourceNames, position: Lsn
) -> None:
    """Until a turn of this source has shown that the log has got there."""
    query = """SELECT coalesce(min(decoder_confirmed_lsn) >= %s::pg_lsn, false)
                 FROM tailrace.change_tracking WHERE source = %s"""
    asked = [str(position), names.slot]
    capture.wait_until(lambda: source.execute(query, asked).fetchone() == (True,))


def test_sources_share_a_table_from_the_wal_and_empty_their_own_buffers(
    database: Database, source: psycopg.Connection, store: FileStore, other_store: FileStore
) -> None:
    source.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    with connect(database.dsn) as conn:
        migrate(conn)
    rules = hybrid("auto", tables={"public.u": "trigger"})
    with Running(of_other(settings(database.dsn, "public.t")), other_store) as other:
        other.wait_until(lambda: source_of(source, "t") == OTHER.slot)
        with Running(settings(database.dsn, hybrid=rules), store) as capture:
            capture.wait_until(lambda: source_of(source, "u") == NAMES.slot)
            source.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'a')")
            wait_caught_up(capture, source)
            capture.wait_until(lambda: buffered_count(source, "public.u") == 0)
            wait_confirmed(capture, source, NAMES, wal_position(source))
            wait_confirmed(other, source, OTHER, wal_position(source))
            assert source_of(source, "t") == OTHER.slot
            assert alerts(source) == []
    for log in (store, other_store):
        assert_equal(log, source, "public.t")


def test_a_table_that_another_source_captures_by_triggers_keeps_them(
    database: Database, source: psycopg.Connection, store: FileStore, other_store: FileStore
) -> None:
    source.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    rules = hybrid("auto", tables={"public.t": "trigger"})
    with Running(settings(database.dsn, "public.t", hybrid=rules), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        told = of_other(settings(database.dsn, hybrid=hybrid("auto")))
        # The second time it finds the table published.
        for key in range(2):
            with Running(told, other_store) as other:
                other.wait_until(lambda: source_of(source, "u") == OTHER.slot)
                wait_confirmed(other, source, OTHER, wal_position(source))
                source.execute("INSERT INTO t VALUES (%s, 'shared')", [key])
                wait_confirmed(other, source, OTHER, wal_position(source))
                wait_caught_up(capture, source)
            assert trigger_states(source, "t") == ["A", "A"]
            assert source_of(source, "t") == NAMES.slot
    for log in (store, other_store):
        assert [(change.new or {})["id"] for change in read_changes(log)] == ["0", "1"]


def test_triggers_take_over_what_another_source_has_from_the_wal_or_has_left(
    database: Database, source: psycopg.Connection, store: FileStore, other_store: FileStore
) -> None:
    with connect(database.dsn) as conn:
        migrate(conn)
    with Running(of_other(settings(database.dsn, "public.t")), other_store) as other:
        other.wait_until(lambda: source_of(source, "t") == OTHER.slot)
    with connect(database.dsn) as conn:
        drop_slot(conn, OTHER.slot)
    told = settings(database.dsn, "public.t", hybrid=hybrid("trigger"))
    with Running(told, store) as capture:
        capture.wait_until(lambda: source_of(source, "t") == NAMES.slot)
        source.execute("INSERT INTO t VALUES (1, 'drained')")
        capture.wait_until(lambda: len(list(read_changes(store))) == 1)
    assert modes(source) == {"t": "TRIGGER"}


def test_triggers_of_another_source_are_refused_for_their_table_alone(
    database: Database, source: psycopg.Connection, store: FileStore, other_store: FileStore
) -> None:
    source.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    by_trigger = hybrid("trigger")
    with Running(settings(database.dsn, "public.t", hybrid=by_trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        told = of_other(settings(database.dsn, hybrid=by_trigger))
        with Running(told, other_store) as other:
            other.wait_until(lambda: source_of(source, "u") == OTHER.slot)
            source.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'a')")
            other.wait_until(lambda: len(list(read_changes(other_store))) == 1)
            capture.wait_until(lambda: len(list(read_changes(store))) == 1)
    assert source_of(source, "t") == NAMES.slot
    assert [change.relation.name for change in read_changes(other_store)] == ["u"]
    assert read_slot(source, OTHER.slot) is None


def look_after(database: Database, store: FileStore) -> None:
    """One turn of a leader that streams."""
    with connect(database.dsn) as conn, leading(database.dsn) as pid:
        selection, rules = Selection(["public.t"]), hybrid("auto")
        task = Task(database.dsn, NAMES, selection, rules, leader_pid=pid, has_slot=True)
        HybridTables(store, task).look_after(conn, should_go_on=lambda: True)


def begin_on_record(database: Database, source: psycopg.Connection, store: FileStore) -> None:
    """A table comes from the WAL, and is shown."""
    with connect(database.dsn) as conn:
        migrate(conn)
    told = settings(database.dsn, "public.t", hybrid=hybrid("auto"))
    with Running(told, store) as capture:
        capture.wait_until(lambda: source_of(source, "t") == NAMES.slot)


def test_a_table_that_cannot_be_taken_out_yet_stays_on_record(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    begin_on_record(database, source, store)
    source.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    query = "SELECT tracked_since FROM tailrace.change_tracking"
    since = source.execute(query).fetchall()
    with database.connect() as other, other.transaction():
        other.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
        look_after(database, store)
        assert (NAMES.publication, "t") in published(source)
        assert source.execute(query).fetchall() == since != []
    look_after(database, store)
    assert source.execute(query).fetchall() == []


def test_what_is_left_in_a_buffer_is_on_record_until_it_is_in_the_log(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    begin_on_record(database, source, store)
    track(source, "public.t")
    source.execute("INSERT INTO t VALUES (1, 'left')")
    source.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    look_after(database, store)
    assert (NAMES.publication, "t") not in published(source)
    assert source_of(source, "t") == NAMES.slot
    source.execute(statement("DELETE FROM {}", buffer(oid_of(source, "public.t"))))
    look_after(database, store)
    assert source_of(source, "t") is None


def test_f077_what_is_left_in_a_buffer_is_on_record_though_the_slot_is_lost(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = hybrid("auto", tables={"public.t": "trigger"})
    told = settings(database.dsn, "public.t", hybrid=rules)
    with Running(told, store) as capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
    source.execute("INSERT INTO t VALUES (1, 'left')")
    oid = oid_of(source, "public.t")
    set_mode(source, oid, Mode.WAL, source=NAMES.slot, slot=NAMES.slot)
    drop_slot(source, NAMES.slot)
    seen = []

    def look(name: str) -> None:
        if name == "slot.after_let_go":
            seen.append((source_of(source, "t"), buffered_count(source, "public.t")))

    monkeypatch.setattr("tailrace.capture.drains.leader.failpoint", look)
    with Running(told, store) as capture:
        capture.wait_until(lambda: len(list(read_changes(store))) == 1)
    assert seen == [(NAMES.slot, 1)]


def test_a_source_whose_turn_was_under_way_leaves_triggers_to_the_one_that_has_taken_the_table(
    database: Database, source: psycopg.Connection, store: FileStore, other_store: FileStore
) -> None:
    with connect(database.dsn) as conn:
        migrate(conn)
    told = of_other(settings(database.dsn, "public.t", hybrid=hybrid("auto")))
    with Running(told, other_store) as other:
        other.wait_until(lambda: source_of(source, "t") == OTHER.slot)
        other.wait_for_stream()
    rules = hybrid("auto", tables={"public.t": "trigger"})
    capture = Running(settings(database.dsn, "public.t", hybrid=rules), store)
    with ExitStack() as stack:

        def take_it_up() -> bool:
            # The turn of the other one has looked, and not come to this table yet.
            if source_of(source, "t") == OTHER.slot:
                stack.enter_context(capture)
                capture.wait_until(lambda: source_of(source, "t") == NAMES.slot)
                capture.wait_for_stream()
            return True

        with connect(database.dsn) as conn, leading(database.dsn, OTHER.slot) as pid:
            names = Selection(["public.t"])
            task = Task(database.dsn, OTHER, names, hybrid("auto"), leader_pid=pid, has_slot=True)
            HybridTables(other_store, task).look_after(conn, should_go_on=take_it_up)
        assert trigger_states(source, "t") == ["A", "A"]
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
        assert_equal(store, source, "public.t")
