"""Tables move between triggers and the WAL while they are written: exactly, or not at all."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from tailrace.capture.hybrid.handover import Handover
from tailrace.capture.roll import rolls_of
from tailrace.control.schema import latest_version, migrate
from tailrace.errors import SourceError, SourceGap
from tailrace.log.bases import newest_positions, put_base, read_base
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.buffer import SCHEMA, buffer_name, row_trigger, truncate_trigger
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import connect
from tailrace.postgres.slot import drop_slot
from tailrace.storage import FileStore
from tests.capture.draining import leading
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import NAMES, Running, hybrid, published, settings, wait_caught_up
from tests.capture.tracked import oid_of
from tests.server import Database, both_versions

pytestmark = [both_versions, pytest.mark.usefixtures("quickly")]


def modes(source: psycopg.Connection) -> dict[str, str]:
    """How tables are captured, as is shown."""
    if source.execute("SELECT to_regclass('tailrace.change_tracking')").fetchone() == (None,):
        return {}
    query = "SELECT table_name, cdc_mode FROM tailrace.change_tracking"
    return dict(source.execute(query).fetchall())


def has_control_schema(source: psycopg.Connection) -> bool:
    query = "SELECT to_regnamespace('tailrace') IS NOT NULL"
    return source.execute(query).fetchone() == (True,)


def trigger_states(source: psycopg.Connection, table: str) -> list[str]:
    """`A` for each trigger of ours that is enabled always, `D` for one that is disabled."""
    query = """SELECT tgenabled::text FROM pg_trigger
                WHERE tgrelid = %s::regclass AND tgname LIKE 'tailrace%%' ORDER BY tgname"""
    return [state for (state,) in source.execute(query, [table]).fetchall()]


def alerts(source: psycopg.Connection) -> list[str]:
    query = "SELECT reason FROM tailrace.check_cdc_health() WHERE alert"
    return [reason for (reason,) in source.execute(query).fetchall()]


def test_with_a_replica_identity_a_table_goes_straight_to_the_wal(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        assert published(source) == {("tailrace_main", "t")}
        assert not has_control_schema(source)
        assert trigger_states(source, "t") == []


def test_a_table_without_a_key_is_captured_only_if_triggers_are_asked_for(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE keyless (v text)")
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        assert published(source) == {("tailrace_main", "t")}
        assert not has_control_schema(source)
    told = settings(database.dsn, hybrid=hybrid("auto", tables={"public.keyless": "trigger"}))
    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "WAL", "keyless": "TRIGGER"})
        oid = source.execute("SELECT 'keyless'::regclass::oid").fetchone()
        assert oid is not None
        assert published(source) == {
            ("tailrace_main", "t"),
            ("tailrace_main_buffers", f"changes_{oid[0]}"),
        }


def test_a_table_is_given_a_replica_identity_if_that_is_allowed(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE keyless (v text)")
    told = settings(database.dsn, hybrid=hybrid("auto", auto_replica_identity=True))
    with Running(told, store) as capture:
        capture.wait_until(lambda: ("tailrace_main", "keyless") in published(source))
        source.execute("INSERT INTO keyless VALUES ('a')")
        source.execute("UPDATE keyless SET v = 'b'")
        capture.wait_until(lambda: len(list(read_changes(store))) == 2)


def test_a_table_that_is_named_alone_is_given_its_replica_identity_at_the_start(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE keyless (v text)")
    told = hybrid("auto", auto_replica_identity=True)
    with Running(settings(database.dsn, "public.keyless", hybrid=told), store) as capture:
        capture.wait_for_stream()
        assert published(source) == {("tailrace_main", "keyless")}


def test_a_table_goes_to_the_wal_and_back_as_the_settings_say(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
        assert modes(source) == {"t": "TRIGGER"}
        assert trigger_states(source, "t") == ["A", "A"]
        assert ("tailrace_main", "t") not in published(source)
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        assert ("tailrace_main", "t") in published(source)
        # Nothing is left of the triggers once they are not needed.
        capture.wait_until(lambda: trigger_states(source, "t") == [])
    with Running(by_trigger, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        assert trigger_states(source, "t") == ["A", "A"]
        assert ("tailrace_main", "t") not in published(source)
        # It is where it is to be: there is nothing to alert anybody to.
        capture.wait_until(lambda: alerts(source) == [])


def test_f076_a_lock_that_is_not_won_leaves_the_triggers_in_force(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
    told = settings(
        database.dsn, hybrid=hybrid("auto", lock_timeout_ms=20, transition_timeout_s=1.0)
    )
    with database.connect() as writer, Running(told, store) as capture:
        with writer.transaction():
            writer.execute("INSERT INTO t VALUES (1, 'a')")
            capture.wait_until(lambda: modes(source) == {"t": "TRANSITIONING"})
            # The time is over: it falls back, and says why.
            capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
            assert trigger_states(source, "t") == ["A", "A"]
            error = source.execute("SELECT last_error FROM tailrace.change_tracking").fetchone()
            assert error is not None and "is being written" in error[0]
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def test_f078_triggers_switched_off_by_hand_are_put_back_and_a_base_is_asked_for(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    told = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(told, store) as capture:
        capture.wait_for_stream()
        assert wanted_bases(store, newest_positions(store)) == {}
        oid = oid_of(source, "public.t")
        source.execute(statement("ALTER TABLE t DISABLE TRIGGER {}", identifier(row_trigger(oid))))
        source.execute("INSERT INTO t VALUES (1, 'unseen')")
        capture.wait_until(lambda: trigger_states(source, "t") == ["A", "A"])
        capture.wait_until(lambda: wanted_bases(store, newest_positions(store)))
        (wanted,) = wanted_bases(store, newest_positions(store)).values()
        assert row_trigger(oid) in wanted.reason and "disabled" in wanted.reason
        source.execute(statement("DROP TRIGGER {} ON t", identifier(truncate_trigger(oid))))
        capture.wait_until(lambda: trigger_states(source, "t") == ["A", "A"])
        # What was missed is shown until a base has it.
        capture.wait_until(lambda: any("a new base is due" in alert for alert in alerts(source)))
        positions = newest_positions(store)
        due = wanted_bases(store, positions)[oid].position
        put_base(store, replace(read_base(store, oid, positions[oid]), position=due))
        capture.wait_until(lambda: alerts(source) == [])


def test_a_sequence_that_hands_out_numbers_ahead_is_set_back_and_a_base_is_asked_for(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    told = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(told, store) as capture:
        capture.wait_for_stream()
        oid = oid_of(source, "public.t")
        cache = "SELECT cache FROM tailrace.numbering(%s)"
        assert source.execute(cache, (oid,)).fetchone() == (1,)
        name = qualified(SCHEMA, f"{buffer_name(oid)}_seq_seq")
        source.execute(statement("ALTER SEQUENCE {} CACHE 10", name))
        capture.wait_until(lambda: source.execute(cache, (oid,)).fetchone() == (1,))
        capture.wait_until(lambda: wanted_bases(store, newest_positions(store)))
        (wanted,) = wanted_bases(store, newest_positions(store)).values()
        assert "has CACHE 10" in wanted.reason


def test_f078_triggers_switched_off_just_before_the_barrier_hold_it_up(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def switch_off(name: str) -> None:
        if name == "handover.before_barrier" and not done:
            done.append(name)
            with database.connect() as other:
                other.execute("ALTER TABLE t DISABLE TRIGGER ALL")
                other.execute("INSERT INTO t VALUES (1, 'unseen')")

    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
    monkeypatch.setattr("tailrace.capture.hybrid.handover.failpoint", switch_off)
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        assert done
        (wanted,) = wanted_bases(store, newest_positions(store)).values()
        assert "is disabled" in wanted.reason


def test_the_schema_of_an_older_version_is_brought_up_to_date_though_no_table_is_new(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
    source.execute("DELETE FROM tailrace.migrations WHERE version = %s", (latest_version(),))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
        newest = "SELECT max(version) FROM tailrace.migrations"
        assert source.execute(newest).fetchone() == (latest_version(),)


def test_a_table_that_nobody_means_any_more_is_let_go(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    trigger = hybrid("auto", tables={"public.t": "trigger"})
    with Running(settings(database.dsn, hybrid=trigger), store) as capture:
        capture.wait_for_stream()
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with Running(settings(database.dsn, "public.other", hybrid=trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == {"other": "WAL"})
        assert trigger_states(source, "t") == []
        query = "SELECT count(*) FROM pg_class WHERE relname LIKE 'changes\\_%'"
        capture.wait_until(lambda: source.execute(query).fetchone() == (0,))


def test_f052_a_table_that_loses_its_key_is_set_aside_and_comes_back(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        source.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        capture.wait_until(lambda: published(source) == set())
        source.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        capture.wait_until(lambda: published(source) == {("tailrace_main", "t")})
        assert not has_control_schema(source)


def test_f061_a_row_filter_that_someone_adds_is_taken_out_again(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        source.execute("ALTER PUBLICATION tailrace_main SET TABLE t WHERE (id > 5)")
        capture.wait_until(lambda: wanted_bases(store, newest_positions(store)))
        capture.wait_until(lambda: published(source) == {("tailrace_main", "t")})
        query = "SELECT count(*) FROM pg_publication_rel WHERE prqual IS NOT NULL"
        assert source.execute(query).fetchone() == (0,)


def test_f061_a_buffer_that_someone_takes_out_of_its_publication_ends_capture(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    told = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with Running(told, store) as capture:
        capture.wait_until(lambda: len(published(source)) == 2)
        (name,) = [table for _, table in published(source) if table.startswith("changes")]
        drop = sql.SQL("ALTER PUBLICATION tailrace_main_buffers DROP TABLE tailrace_changes.{}")
        source.execute(drop.format(sql.Identifier(name)))
        capture.fails_with(SourceGap)


def test_f082_a_zombie_cannot_pass_the_barrier(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
    with connect(database.dsn) as conn:
        (table,) = tables_matching(conn, ["public.t"])
        barrier = Barrier(conn, "tailrace_main", conn.info.backend_pid, 200)
        with pytest.raises(SourceError, match="another process leads"), barrier.locked(table):
            raise AssertionError("it must not come this far")


def slots(source: psycopg.Connection) -> int:
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tailrace_main'"
    row = source.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_f077_a_slot_dropped_while_it_streams_is_made_again_behind_triggers(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
        with connect(database.dsn) as conn:
            drop_slot(conn, "tailrace_main")
        # First its triggers, then the base that covers what was lost, then the WAL again.
        capture.wait_until(lambda: wanted_bases(store, newest_positions(store)))
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        source.execute("INSERT INTO t VALUES (2, 'b')")
        capture.wait_until(lambda: "2" in {(c.new or {}).get("id") for c in read_changes(store)})


def test_f077_a_table_that_went_back_before_the_log_got_there_is_read_anew_if_the_slot_is_lost(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with connect(database.dsn) as conn:
        migrate(conn)
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
    # Nobody streams what is written now, and then the table goes back.
    source.execute("INSERT INTO t VALUES (1, 'lost with the slot')")
    with connect(database.dsn) as conn, leading(database.dsn) as pid:
        (table,) = tables_matching(conn, ["public.t"])
        handover = Handover(store, NAMES, pid, lambda _: pytest.fail("it is not compared"))
        handover.go_back(conn, table, hybrid("auto").rules, rolls_of(NAMES)[0])
        drop_slot(conn, "tailrace_main")
    source.execute("INSERT INTO t VALUES (2, 'buffered')")
    with Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as capture:
        capture.wait_until(lambda: [(c.new or {})["id"] for c in read_changes(store)] == ["2"])
        assert oid_of(source, "public.t") in wanted_bases(store, newest_positions(store))


def test_a_slot_that_no_table_needs_is_given_back(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
    source.execute("INSERT INTO t VALUES (2, 'b')")
    with Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        source.execute("INSERT INTO t VALUES (3, 'c')")
        capture.wait_until(lambda: slots(source) == 0)
        source.execute("UPDATE t SET v = 'd'")
        capture.wait_until(lambda: len(list(read_changes(store))) == 6)
        assert_equal(store, source, "public.t")
        assert wanted_bases(store, newest_positions(store)) == {}
