"""Tables that come from the WAL alone are shown in SQL too, where the control schema is."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest

from tailrace.capture.hybrid.on_record import Task
from tailrace.capture.modes import HybridSettings
from tailrace.capture.wal_tables import WalTables
from tailrace.control.schema import _migrations, migrate
from tailrace.control.tracking import Mode, track
from tailrace.errors import NotLeading
from tailrace.model import Lsn
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import connect
from tailrace.storage import FileStore
from tests.capture.oracle import assert_equal
from tests.capture.running import NAMES, Running, settings, wait_caught_up
from tests.capture.tracked import buffered_count
from tests.capture.tracked import track as track_by_triggers
from tests.server import Database

SHOWN = "SELECT table_name, cdc_mode, slot_name IS NOT NULL FROM tailrace.stat_tables ORDER BY 1"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.capture.housekeeping.TABLES_INTERVAL_S", 0.1)


def test_tables_from_the_wal_are_on_record_as_long_as_they_are_captured(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE gone (id int PRIMARY KEY)")
    with connect(database.dsn) as conn:
        migrate(conn)
    with Running(settings(database.dsn, "public.t", "public.gone"), store) as capture:
        capture.wait_until(lambda: len(source.execute(SHOWN).fetchall()) == 2)
        rows = source.execute(SHOWN).fetchall()
        assert [row[1:] for row in rows] == [("WAL", True)] * 2
        health = source.execute("SELECT count(*) FROM tailrace.check_cdc_health()").fetchone()
        assert health == (2,)
        source.execute("DROP TABLE gone")
        capture.wait_until(lambda: len(source.execute(SHOWN).fetchall()) == 1)
        source.execute("INSERT INTO t VALUES (1, 'on record')")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


ON_RECORD = "SELECT publication_name, slot_name FROM tailrace.change_tracking"


def test_a_table_that_gets_a_key_is_on_record_with_its_new_publication(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE keyless (v int)")
    with connect(database.dsn) as conn:
        migrate(conn)
    told = settings(database.dsn, "public.keyless", inserts_only=["public.keyless"])
    with Running(told, store) as capture:
        is_first = [(NAMES.inserts, NAMES.slot)]
        capture.wait_until(lambda: source.execute(ON_RECORD).fetchall() == is_first)
        source.execute("ALTER TABLE keyless ADD COLUMN id int PRIMARY KEY")
        is_moved = [(NAMES.publication, NAMES.slot)]
        capture.wait_until(lambda: source.execute(ON_RECORD).fetchall() == is_moved)


def test_a_row_that_names_no_publication_is_set_right(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with connect(database.dsn) as conn:
        migrate(conn)
        (table,) = tables_matching(conn, ["public.t"])
        # As one has left it who died between the row and its mode.
        track(conn, table, source=NAMES.slot, mode=Mode.WAL)
    with Running(settings(database.dsn, "public.t"), store) as capture:
        is_right = [(NAMES.publication, NAMES.slot)]
        capture.wait_until(lambda: source.execute(ON_RECORD).fetchall() == is_right)


def test_f082_a_late_leader_puts_no_table_on_record_and_forgets_none(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with connect(database.dsn) as conn:
        migrate(conn)
        with Running(settings(database.dsn, "public.t"), store) as capture:
            capture.wait_until(lambda: source.execute(SHOWN).fetchall())
        before = source.execute("SELECT * FROM tailrace.change_tracking").fetchall()
        selection = Selection(["public.t", "public.u"])
        task = Task(database.dsn, NAMES, selection, HybridSettings(), leader_pid=0, has_slot=True)
        with pytest.raises(NotLeading):
            WalTables(store, task).look_after(conn, should_go_on=lambda: True)
        assert source.execute("SELECT * FROM tailrace.change_tracking").fetchall() == before


def is_confirmed(source: psycopg.Connection, position: Lsn) -> bool:
    """Whether a turn has shown that the log has got there."""
    query = "SELECT decoder_confirmed_lsn >= %s::pg_lsn FROM tailrace.change_tracking"
    return source.execute(query, [str(position)]).fetchone() == (True,)


def test_a_log_from_the_wal_alone_deletes_nothing_from_buffers(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    track_by_triggers(source, "public.other")
    source.execute("INSERT INTO other VALUES (1)")
    with Running(settings(database.dsn, "public.t"), store) as capture:
        # A mark is put by one turn, and what it shows deleted by a later one.
        for key in range(5):
            source.execute("INSERT INTO t VALUES (%s, 'on record')", [key])
            capture.wait_until(partial(is_confirmed, source, wal_position(source)))
    assert buffered_count(source, "public.other") == 1


def test_without_the_control_schema_none_is_made(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, "public.t"), store) as capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'alone')")
        wait_caught_up(capture, source)
    row = source.execute("SELECT to_regnamespace('tailrace') IS NULL").fetchone()
    assert row == (True,)
    assert_equal(store, source, "public.t")


def test_tables_are_shown_though_an_older_version_has_made_the_schema(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = _migrations()[:11]
    with connect(database.dsn) as conn, monkeypatch.context() as older:
        older.setattr("tailrace.control.schema._migrations", lambda: known)
        migrate(conn)
    with Running(settings(database.dsn, "public.t"), store) as capture:
        is_right = [(NAMES.publication, NAMES.slot)]
        capture.wait_until(lambda: source.execute(ON_RECORD).fetchall() == is_right)
