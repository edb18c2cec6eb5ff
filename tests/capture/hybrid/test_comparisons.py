"""Both captures of a table are compared before the one is given up; its owner notices nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count

import psycopg
import pytest
from psycopg import sql

from tailrace.capture.drains.passed_marks import PassedMarks
from tailrace.capture.hybrid.handover import SHADOWS_MAX
from tailrace.postgres.buffer import buffer
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.storage import FileStore
from tests.capture.hybrid.test_handover import modes, trigger_states
from tests.capture.running import Running, hybrid, published, settings
from tests.server import Database, both_versions

pytestmark = [both_versions, pytest.mark.usefixtures("quickly")]


def test_captures_that_agree_in_the_shadow_are_handed_over(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
    told = settings(database.dsn, hybrid=hybrid("auto", shadow_s=0.5))
    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRANSITIONING"})
        for number in range(20):
            source.execute("INSERT INTO t VALUES (%s, 'a')", [number])
            source.execute("UPDATE t SET v = repeat('x', %s) WHERE id = %s", [number * 999, number])
            source.execute("UPDATE t SET id = id + 1000 WHERE id = %s", [number])
            source.execute("DELETE FROM t WHERE id = %s", [number + 1000 - number % 2])
        source.execute("TRUNCATE t")
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        capture.wait_until(lambda: "tailrace_main_shadow" not in dict(published(source)))


def test_captures_that_differ_in_the_shadow_are_not_handed_over(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
    told = settings(database.dsn, hybrid=hybrid("auto", shadow_s=120.0))
    with Running(told, store) as capture:
        capture.wait_until(
            lambda: "tailrace_main_shadow" in {name for name, _ in published(source)}
        )
        # Changes that never happened: the buffer is written to by hand, until both are compared.
        oid = source.execute("SELECT 't'::regclass::oid").fetchone()
        assert oid is not None
        query = """INSERT INTO {} (xid, op, depth, ts, shape, new_1)
                   VALUES (pg_current_xact_id(), 'I', 1, now(), '1', %s)"""
        plant, keys = sql.SQL(query).format(buffer(oid[0])), count(7)

        def is_noticed() -> bool:
            source.execute(plant, [next(keys)])
            return modes(source) == {"t": "TRIGGER"}

        capture.wait_until(is_noticed)
        error = source.execute("SELECT last_error FROM tailrace.change_tracking").fetchone()
        assert error is not None
        assert re.search(r"key \(\d+\): triggers tell I, the wal tells nothing", error[0])
        assert trigger_states(source, "t") == ["A", "A"]


def test_several_tables_are_compared_at_once_each_beside_its_writer(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    # One more than are compared at a time.
    names = [f"t{number}" for number in range(SHADOWS_MAX + 1)]
    for name in names:
        source.execute(statement("CREATE TABLE {} (id int PRIMARY KEY)", identifier(name)))
    tables = [f"public.{name}" for name in names]
    by_trigger = hybrid("auto", tables=dict.fromkeys(tables, "trigger"))
    with Running(settings(database.dsn, *tables, hybrid=by_trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == dict.fromkeys(names, "TRIGGER"))
    told = settings(database.dsn, *tables, hybrid=hybrid("auto", shadow_s=1.0))
    keys = count()
    with Running(told, store) as capture:

        def are_handed_over() -> bool:
            key = next(keys)
            for name in names:
                source.execute(statement("INSERT INTO {} VALUES (%s)", identifier(name)), [key])
            errors = source.execute("SELECT last_error FROM tailrace.change_tracking").fetchall()
            assert not [error for (error,) in errors if error and "differs" in error]
            return modes(source) == dict.fromkeys(names, "WAL")

        capture.wait_until(are_handed_over)
        capture.wait_until(lambda: "tailrace_main_shadow" not in dict(published(source)))


def test_open_transactions_hold_up_the_comparison_of_a_table_and_no_other_table(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE zoo (id int PRIMARY KEY)")
    by_trigger = hybrid("auto", tables={"public.*": "trigger"})
    with Running(settings(database.dsn, hybrid=by_trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "zoo": "TRIGGER"})
    rules = replace(hybrid("auto").rules, shadow_s=0.2)
    told = settings(database.dsn, hybrid=replace(hybrid("auto"), of_some=[("public.t", rules)]))
    with database.connect() as writer, Running(told, store) as capture:
        with writer.transaction():
            writer.execute("SELECT pg_current_xact_id()")
            capture.wait_until(lambda: modes(source) == {"t": "TRANSITIONING", "zoo": "WAL"})
            query = "SELECT last_error FROM tailrace.change_tracking WHERE table_name = 't'"
            capture.wait_until(lambda: source.execute(query).fetchone() != (None,))
            assert "waits for open transactions" in str(source.execute(query).fetchone())
        capture.wait_until(lambda: modes(source) == {"t": "WAL", "zoo": "WAL"})


def test_the_comparison_of_a_table_that_is_dropped_ends_with_it(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE zoo (id int PRIMARY KEY)")
    by_trigger = hybrid("auto", tables={"public.*": "trigger"})
    with Running(settings(database.dsn, hybrid=by_trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "zoo": "TRIGGER"})
    shadows = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'tailrace_shadow%'"
    told = settings(database.dsn, hybrid=hybrid("auto", shadow_s=120.0))
    with Running(told, store) as capture:
        capture.wait_until(lambda: source.execute(shadows).fetchone() == (2,))
        source.execute("DROP TABLE zoo")
        capture.wait_until(lambda: source.execute(shadows).fetchone() == (1,))
        assert ("tailrace_main_shadow", "t") in published(source)


def test_a_table_whose_comparison_was_ended_by_the_server_does_not_stay_published(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    """Its owner may drop its key meanwhile, and could not update it any more."""
    source.execute("INSERT INTO t VALUES (1, 'before')")
    source.execute("CREATE TABLE zoo (id int PRIMARY KEY)")
    by_trigger = hybrid("auto", tables={"public.*": "trigger"})
    with Running(settings(database.dsn, hybrid=by_trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "zoo": "TRIGGER"})
    told = settings(database.dsn, hybrid=hybrid("auto", shadow_s=120.0))
    compared = {("tailrace_main_shadow", "t"), ("tailrace_main_shadow", "zoo")}
    end_all = """SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots
                  WHERE slot_name LIKE 'tailrace@_shadow%' ESCAPE '@'"""
    with Running(told, store) as capture:
        capture.wait_until(lambda: compared <= published(source))
        with database.connect() as owner, owner.transaction():
            owner.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
            source.execute(end_all)
        capture.wait_until(lambda: ("tailrace_main_shadow", "t") not in published(source))
        source.execute("UPDATE t SET v = 'after'")
        capture.wait_until(lambda: ("tailrace_main_shadow", "zoo") in published(source))


def test_a_table_that_was_left_in_the_publication_for_comparisons_does_not_stay_there(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    """By a leader who was stopped, and has come that far since another leads."""
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        capture.wait_for_stream()
        source.execute("CREATE PUBLICATION tailrace_main_shadow FOR TABLE t")
        capture.wait_until(lambda: "tailrace_main_shadow" not in dict(published(source)))


@pytest.mark.parametrize("is_meant", [True, False])
def test_a_table_that_is_let_go_is_not_published_until_its_buffer_is_empty(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    is_meant: bool,
) -> None:
    """That may take as long as the stream is behind; without its key nobody could update it."""
    monkeypatch.setattr(PassedMarks, "turn", lambda *_: 0)
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
    told = settings(database.dsn, hybrid=hybrid("auto", shadow_s=120.0))
    with Running(told, store) as capture:
        capture.wait_until(lambda: ("tailrace_main_shadow", "t") in published(source))
        source.execute("INSERT INTO t VALUES (1, 'waits')")
        source.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        if not is_meant:
            source.execute("CREATE SCHEMA other")
            source.execute("ALTER TABLE t SET SCHEMA other")
        capture.wait_until(lambda: ("tailrace_main_shadow", "t") not in published(source))
        name = qualified("public" if is_meant else "other", "t")
        source.execute(statement("UPDATE {} SET v = 'after'", name))
