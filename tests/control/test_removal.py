"""Whatever is left of capture by triggers is removed, also where the record of it is gone."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from tailrace.control.removal import remove_capture
from tailrace.control.schema import migrate
from tailrace.control.tracking import Mode, claim, forget, read_tracked, track
from tailrace.errors import SourceError
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.quote import SourceNames, identifier, statement
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import install_triggers, lock_table
from tests.buffered import table_of
from tests.capture.running import wait_until

NAMES = SourceNames.of("main")
TRIGGERS = """SELECT tgrelid::regclass::text FROM pg_trigger
               WHERE tgname LIKE 'tailrace%' ORDER BY 1"""
SCHEMAS = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'tailrace%' ORDER BY 1"


def capture(conn: Connection, name: str, *, source: str = NAMES.slot) -> TableInfo:
    """Put a table in trigger mode, and on record."""
    table = table_of(conn, name)
    install_triggers(conn, table, lock_timeout_ms=1000)
    track(conn, table, source=source, mode=Mode.TRIGGER)
    return table


def teardown(conn: Connection) -> None:
    """As the command does it."""
    remove_capture(conn, NAMES, keep=lambda: None)


@pytest.fixture
def tables(app: Connection) -> None:
    """One that is plain, and one of partitions."""
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    app.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")


def test_triggers_go_though_the_control_schema_was_dropped_by_hand(
    controlled: Connection, app: Connection, tables: None
) -> None:
    for name in ("app.t", "app.p"):
        capture(controlled, name)
    app.execute("INSERT INTO t VALUES (1)")
    controlled.execute("DROP SCHEMA tailrace CASCADE")
    teardown(controlled)
    assert controlled.execute(TRIGGERS).fetchall() == []
    assert controlled.execute(SCHEMAS).fetchall() == []
    app.execute("INSERT INTO t VALUES (2)")
    teardown(controlled)
    migrate(controlled)
    capture(controlled, "app.t")


def test_triggers_go_though_their_tables_have_other_oids_since_a_restore(
    controlled: Connection, app: Connection, tables: None
) -> None:
    """A dump has the names of functions and buffers, and the rows on record, as they were."""
    for name, restored in (("app.t", 999_999_991), ("app.p", 999_999_992)):
        oid = capture(controlled, name).oid
        for template, of in (
            ("ALTER FUNCTION tailrace_changes.{} RENAME TO {}", "capture_"),
            ("ALTER TABLE tailrace_changes.{} RENAME TO {}", "changes_"),
        ):
            names = (identifier(f"{of}{oid}"), identifier(f"{of}{restored}"))
            controlled.execute(statement(template, *names))
        query = "UPDATE tailrace.change_tracking SET table_oid = %s WHERE table_oid = %s"
        controlled.execute(query, (restored, oid))
    teardown(controlled)
    assert controlled.execute(TRIGGERS).fetchall() == []
    assert controlled.execute(SCHEMAS).fetchall() == []
    app.execute("INSERT INTO t VALUES (2)")


def test_what_another_source_has_on_record_stays(
    controlled: Connection, app: Connection, tables: None
) -> None:
    capture(controlled, "app.t")
    capture(controlled, "app.p", source="tailrace_other")
    teardown(controlled)
    found = {table for (table,) in controlled.execute(TRIGGERS)}
    assert found == {"app.p", "app.p1"}
    app.execute("INSERT INTO p VALUES (1)")


def test_what_is_on_no_record_goes_beside_what_is_on_record_of_another_source(
    controlled: Connection, tables: None
) -> None:
    forget(controlled, capture(controlled, "app.t").oid, source=NAMES.slot)
    capture(controlled, "app.p", source="tailrace_other")
    teardown(controlled)
    assert {table for (table,) in controlled.execute(TRIGGERS)} == {"app.p", "app.p1"}


def test_capture_does_not_go_on_with_buffers_of_which_nobody_knows_how_they_are_read(
    controlled: Connection, tables: None
) -> None:
    capture(controlled, "app.t")
    controlled.execute("DROP SCHEMA tailrace CASCADE")
    with pytest.raises(SourceError, match="schema tailrace was dropped") as raised:
        migrate(controlled)
    assert "tailrace teardown" in raised.value.hint


def test_functions_that_are_left_keep_no_schema_from_being_made(controlled: Connection) -> None:
    controlled.execute("DROP SCHEMA tailrace CASCADE")
    migrate(controlled)
    assert controlled.execute(SCHEMAS).fetchall() == [("tailrace",), ("tailrace_changes",)]


def claims(session: Connection, table: TableInfo) -> bool:
    """Another source takes a table up by triggers, unless it cannot have it just now."""
    try:
        with session.transaction():
            session.execute("SET LOCAL lock_timeout = '200ms'")
            lock_table(session, table)
            claim(session, table, source="tailrace_other", mode=Mode.TRIGGER)
            install_triggers(session, table, lock_timeout_ms=200)
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def test_what_another_source_takes_up_meanwhile_stays(
    controlled: Connection, tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was ours until then, from the WAL."""
    capture(controlled, "app.t")
    theirs = table_of(controlled, "app.p")
    track(controlled, theirs, source=NAMES.slot, mode=Mode.WAL)
    taken: list[bool] = []
    with connect(controlled.info.dsn) as other:

        def take(name: str) -> None:
            if name == "triggers.after_drop" and not taken:
                taken.append(claims(other, theirs))

        monkeypatch.setattr("tailrace.postgres.triggers.failpoint", take)
        teardown(controlled)
    assert taken == [True]
    assert {table for (table,) in controlled.execute(TRIGGERS)} == {"app.p", "app.p1"}
    assert read_tracked(controlled, "tailrace_other").keys() == {theirs.oid}


def test_whoever_reads_what_is_on_record_holds_up_only_the_last_source(
    controlled: Connection, tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.control.removal.PATIENCE_S", 0.0)
    capture(controlled, "app.t")
    track(controlled, table_of(controlled, "app.p"), source="tailrace_other", mode=Mode.WAL)
    with connect(controlled.info.dsn) as reader, reader.transaction():
        reader.execute("SELECT FROM tailrace.change_tracking")
        teardown(controlled)
        assert controlled.execute(TRIGGERS).fetchall() == []
        with pytest.raises(SourceError, match="55P03"):
            remove_capture(controlled, SourceNames.of("other"), keep=lambda: None)
    remove_capture(controlled, SourceNames.of("other"), keep=lambda: None)
    assert controlled.execute(SCHEMAS).fetchall() == []


def test_of_two_sources_that_are_removed_at_once_both_are_done(
    controlled: Connection, tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one finds all gone that it waited for."""
    capture(controlled, "app.t")
    with connect(controlled.info.dsn) as session, ThreadPoolExecutor() as pool:
        removed: list[Future[None]] = []

        def remove_other(name: str) -> None:
            if name == "control.before_drop" and not removed:
                other = SourceNames.of("other")
                removed.append(pool.submit(remove_capture, session, other, keep=lambda: None))
                wait_until(
                    lambda: controlled.execute(waiting, (session_pid,)).fetchone() == (True,)
                )

        session_pid = session.info.backend_pid
        waiting = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        monkeypatch.setattr("tailrace.control.schema.failpoint", remove_other)
        teardown(controlled)
        removed[0].result(60.0)
    assert controlled.execute(SCHEMAS).fetchall() == []


def test_no_source_loses_a_table_that_it_takes_up_while_the_schemas_are_removed(
    controlled: Connection, tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(controlled, "app.t")
    theirs, taken = table_of(controlled, "app.p"), list[bool]()
    with connect(controlled.info.dsn) as other:

        def take(name: str) -> None:
            if name == "control.before_drop":
                taken.append(claims(other, theirs))

        monkeypatch.setattr("tailrace.control.schema.failpoint", take)
        teardown(controlled)
    assert bool(controlled.execute(TRIGGERS).fetchall()) == taken[0]
