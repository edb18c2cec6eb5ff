"""The views and the health check say what is, and find what is wrong."""

from __future__ import annotations

import json
import time

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.control import schema
from tailrace.control.health import Health, check_health, read_stats
from tailrace.control.schema import migrate
from tailrace.control.tracking import (
    ALERT_CHANNEL,
    Mode,
    set_confirmed,
    set_error,
    set_mode,
    track,
)
from tailrace.model import Lsn
from tailrace.postgres.buffer import buffer, row_trigger, truncate_trigger
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import identifier, statement
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import install_triggers, trigger_problems
from tests.buffered import table_of
from tests.server import Database

SOURCE = "tailrace_main"


@pytest.fixture
def table(app: Connection, controlled: Connection) -> TableInfo:
    """A table that is captured by triggers."""
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = table_of(controlled, "app.t")
    install_triggers(controlled, found, lock_timeout_ms=1000)
    track(controlled, found, source=SOURCE, mode=Mode.TRIGGER)
    return found


@pytest.fixture
def leader(capture_dsn: str) -> LockSession:
    """A process that leads the source, for as long as the test lasts."""
    session = LockSession(capture_dsn)
    assert session.try_lock(SOURCE)
    return session


def _check(conn: Connection) -> list[Health]:
    return check_health(conn, SOURCE, transition_s_max=600, is_told=True)


def _reason(conn: Connection) -> str:
    (health,) = _check(conn)
    return health.reason


def test_a_table_in_order_raises_no_alert(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    app.execute("INSERT INTO t VALUES (1), (2)")
    (stat,) = read_stats(controlled, SOURCE)
    assert (stat.table, stat.mode, stat.slot) == ("app.t", "TRIGGER", None)
    assert (stat.decoder_status, stat.buffered_rows) == ("ACTIVE", 2)
    assert stat.oldest_buffered is not None
    assert _reason(controlled) == ""
    leader.close()


def test_without_a_leader_capture_has_stopped(controlled: Connection, table: TableInfo) -> None:
    (stat,) = read_stats(controlled, SOURCE)
    assert stat.decoder_status == "STOPPED"
    assert _reason(controlled) == "no capture process runs"


def test_f078_triggers_disabled_or_dropped_behind_our_back_are_found(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    name = row_trigger(table.oid)
    app.execute(statement("ALTER TABLE t DISABLE TRIGGER {}", identifier(name)))
    assert _reason(controlled) == f"trigger {name} on app.t is disabled"
    app.execute(statement("DROP TRIGGER {} ON t", identifier(name)))
    assert _reason(controlled) == f"trigger {name} on app.t is missing"
    app.execute("DROP TABLE t")
    assert _reason(controlled) == "the table is gone"
    leader.close()


def test_triggers_of_an_earlier_version_go_on_under_their_names(
    capture: Connection, app: Connection, leader: LockSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema._migrations()
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "_migrations", lambda: known[:6])
        migrate(capture)
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = table_of(capture, "app.t")
    install_triggers(capture, table, lock_timeout_ms=1000)
    track(capture, table, source=SOURCE, mode=Mode.TRIGGER)
    for made, name in (
        (row_trigger, "tailrace_capture_row"),
        (truncate_trigger, "tailrace_capture_truncate"),
    ):
        names = (identifier(made(table.oid)), identifier(name))
        app.execute(statement("ALTER TRIGGER {} ON t RENAME TO {}", *names))
    assert trigger_problems(capture, table.oid) == []
    assert _check(capture) == [], "it is asked once the schema is of this version"
    migrate(capture)
    assert _reason(capture) == ""
    install_triggers(capture, table, lock_timeout_ms=1000)
    app.execute("INSERT INTO t VALUES (1)")
    (stat,) = read_stats(capture, SOURCE)
    assert stat.buffered_rows == 1
    leader.close()


def test_f077_a_missing_slot_and_publication_are_found(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    set_mode(controlled, table.oid, Mode.WAL, source=SOURCE, slot=SOURCE, publication="p")
    reasons = _reason(controlled).split("; ")
    assert reasons == [
        f"slot {SOURCE} is missing",
        "its triggers are enabled beside the wal",
        "it is not in publication p",
    ]
    leader.close()


def test_a_slot_is_shown_with_what_it_keeps(
    controlled: Connection, app: Connection, table: TableInfo
) -> None:
    controlled.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SOURCE,))
    row = controlled.execute(
        """SELECT slot_name, "exists", active, decoder_status, retained_bytes >= 0, lag_bytes >= 0,
                  tables FROM tailrace.stat_slots"""
    ).fetchone()
    assert row == (SOURCE, True, False, "STOPPED", True, True, 1)
    app.execute("INSERT INTO t VALUES (1)")
    health = controlled.execute(
        "SELECT reason FROM tailrace.check_cdc_health(lag_bytes_max => 0, retained_bytes_max => 0)"
    ).fetchone()
    assert health is not None
    assert "behind" in health[0] and "of wal" in health[0]


def test_for_how_long_changes_wait_is_known_though_nobody_streams(
    controlled: Connection, app: Connection, table: TableInfo
) -> None:
    controlled.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SOURCE,))
    (stat,) = read_stats(controlled, SOURCE)
    assert stat.lag_seconds == 0, "nothing is buffered"
    app.execute("INSERT INTO t VALUES (1)")
    age = statement("UPDATE {} SET ts = ts - interval '2 hours'", buffer(table.oid))
    controlled.execute(age)
    (stat,) = read_stats(controlled, SOURCE)
    assert 7200 <= (stat.lag_seconds or 0) < 7300
    assert "changes wait for 72" in _reason(controlled)


def test_a_slot_that_nobody_streams_is_as_late_as_its_last_confirmation(
    controlled: Connection, app: Connection, table: TableInfo
) -> None:
    controlled.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SOURCE,))
    set_mode(controlled, table.oid, Mode.WAL, source=SOURCE, slot=SOURCE, publication="p")
    app.execute("INSERT INTO t VALUES (1)")
    (stat,) = read_stats(controlled, SOURCE)
    assert stat.lag_seconds is None, "nobody has noted a confirmation yet"
    set_confirmed(controlled, Lsn(1), source=SOURCE)
    (stat,) = read_stats(controlled, SOURCE)
    assert 0 <= (stat.lag_seconds or 0) < 60
    controlled.execute(
        "UPDATE tailrace.change_tracking SET confirmed_at = now() - interval '1 hour'"
    )
    # Neither an error nor the same position once more is a confirmation.
    set_error(controlled, table.oid, "something", source=SOURCE)
    set_confirmed(controlled, Lsn(1), source=SOURCE)
    (stat,) = read_stats(controlled, SOURCE)
    assert 3600 <= (stat.lag_seconds or 0) < 3700
    assert "nothing was confirmed for 36" in _reason(controlled)
    query = "SELECT lag_seconds >= 3600 FROM tailrace.stat_slots"
    assert controlled.execute(query).fetchone() == (True,)


def test_f076_a_stuck_transition_and_the_last_error_are_shown(
    controlled: Connection, table: TableInfo, leader: LockSession
) -> None:
    set_mode(controlled, table.oid, Mode.TRANSITIONING, source=SOURCE, slot=SOURCE)
    controlled.execute(
        "UPDATE tailrace.change_tracking SET transition_started_at = now() - interval '1 hour'"
    )
    assert "its hand-over has been under way since" in _reason(controlled)
    set_mode(controlled, table.oid, Mode.TRIGGER, source=SOURCE)
    set_error(controlled, table.oid, "the lock was not won", source=SOURCE)
    assert _reason(controlled) == "the lock was not won"
    (stat,) = read_stats(controlled, SOURCE)
    assert stat.decoder_status == "ERROR"
    leader.close()


def test_f073_changes_that_wait_too_long_raise_an_alert(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    app.execute("INSERT INTO t VALUES (1)")
    query = "SELECT reason FROM tailrace.check_cdc_health(lag_max => '-1 s')"
    (reason,) = controlled.execute(query).fetchone() or ("",)
    assert reason.startswith("changes wait for")
    leader.close()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_f073_a_transaction_that_stays_open_is_seen_though_its_rows_are_not(
    controlled: Connection,
    app: Connection,
    admin: Connection,
    table: TableInfo,
    leader: LockSession,
    is_prepared: bool,
) -> None:
    # The session belongs to a superuser.
    admin.execute("GRANT pg_read_all_stats TO capture")
    app.execute("BEGIN")
    app.execute("INSERT INTO t VALUES (1)")
    who = f"pid {app.info.backend_pid}"
    if is_prepared:
        app.execute("PREPARE TRANSACTION 'for later'")
        who = "prepared transaction 'for later'"
    time.sleep(0.05)
    query = "SELECT reason FROM tailrace.check_cdc_health(lag_max => '50 ms')"
    (reason,) = controlled.execute(query).fetchone() or ("",)
    assert reason.startswith(f"{who} has been open for ")
    assert reason.endswith(" s, and what it wrote waits")
    assert _reason(controlled) == "", "it has only just begun"
    app.execute("ROLLBACK PREPARED 'for later'" if is_prepared else "ROLLBACK")
    assert controlled.execute(query).fetchone() == (None,)
    leader.close()


def test_f073_a_transaction_that_has_written_nothing_of_the_table_is_not_in_its_way(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    app.execute("BEGIN")
    app.execute("CREATE TABLE unlike (id int)")
    app.execute("SELECT * FROM t")
    query = "SELECT reason FROM tailrace.check_cdc_health(lag_max => '-1 s')"
    (reason,) = controlled.execute(query).fetchone() or ("",)
    assert "open" not in reason
    leader.close()


def test_f073_rows_that_must_be_kept_keep_no_alert_from_coming(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    """However many there are, only so many pages are looked at."""
    name = identifier(f"changes_{table.oid}")
    fill = """INSERT INTO tailrace_changes.{} (ts, new_row) SELECT now(), repeat('x', 5000)
                FROM generate_series(1, %s)"""
    storage = "ALTER TABLE tailrace_changes.{} ALTER new_row SET STORAGE PLAIN"
    with connect(controlled.info.dsn) as report, connect(controlled.info.dsn) as filling:
        filling.execute(statement(storage, name))
        filling.execute(statement(fill.replace("%s", "6000"), name))
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT FROM tailrace.migrations")
        filling.execute(statement("DELETE FROM tailrace_changes.{}", name))
        app.execute("INSERT INTO t VALUES (1)")
        filling.execute(statement(fill.replace("%s", "2000"), name))
    query = "SELECT reason FROM tailrace.check_cdc_health(lag_max => '-1 s')"
    (reason,) = controlled.execute(query).fetchone() or ("",)
    assert reason.startswith("changes wait for")
    with controlled.transaction():
        before = _pages_read(controlled, table)
        (stat,) = read_stats(controlled, SOURCE)
        pages_read = _pages_read(controlled, table) - before
    assert 1500 < stat.buffered_rows < 2500
    assert 4000 < pages_read < 5000, "of some 8000"
    leader.close()


def _pages_read(conn: Connection, table: TableInfo) -> int:
    """Of the buffer, by this session of late."""
    query = "SELECT pg_stat_get_xact_blocks_fetched(to_regclass(%s))"
    row = conn.execute(query, (f"tailrace_changes.changes_{table.oid}",)).fetchone()
    assert row is not None
    return int(row[0])


def test_f079_a_buffer_that_grows_raises_an_alert(
    controlled: Connection, app: Connection, table: TableInfo, leader: LockSession
) -> None:
    app.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    query = "SELECT reason FROM tailrace.check_cdc_health(buffer_bytes_max => 64 * 1024)"
    (reason,) = controlled.execute(query).fetchone() or ("",)
    assert reason.startswith("its buffer takes ") and reason.endswith(" kB")
    assert _reason(controlled) == ""
    leader.close()


def test_alerts_are_told_to_whoever_listens(
    controlled: Connection, admin: Connection, table: TableInfo
) -> None:
    admin.execute(sql.SQL("LISTEN {}").format(sql.Identifier(ALERT_CHANNEL)))
    _check(controlled)
    (note,) = admin.notifies(timeout=120, stop_after=1)
    assert json.loads(note.payload) == {
        "table": "app.t",
        "mode": "TRIGGER",
        "reason": "no capture process runs",
    }


def test_who_monitors_may_look_and_no_more(
    source: Database, admin: Connection, controlled: Connection, table: TableInfo
) -> None:
    admin.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    with connect(make_conninfo(source.dsn, user="watcher")) as conn:
        assert len(read_stats(conn, SOURCE)) == 1
        assert len(_check(conn)) == 1
        assert conn.execute("SELECT count(*) FROM tailrace.stat_slots").fetchone() == (1,)
