"""What the leader sees beside streaming, and tells Prometheus."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.capture import Metrics, Settings
from tailrace.capture.housekeeping import Housekeeping, observe_retained
from tailrace.capture.hybrid.on_record import Task
from tailrace.capture.hybrid.tables import HybridTables
from tailrace.control.schema import migrate
from tailrace.control.tracking import Mode, set_mode, track
from tailrace.postgres.buffer import buffer
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import statement
from tailrace.postgres.session import connect
from tailrace.postgres.slot import drop_slot, read_slot
from tailrace.postgres.triggers import install_triggers
from tailrace.storage import FileStore
from tests.buffered import table_of
from tests.capture.running import NAMES, hybrid, settings
from tests.server import Database


def _by_trigger(dsn: str, table: str, source: str) -> int:
    with connect(dsn) as conn:
        migrate(conn)
        found = table_of(conn, table)
        install_triggers(conn, found, lock_timeout_ms=1000)
        track(conn, found, source=source, mode=Mode.TRIGGER)
        return found.oid


def _housekeeping(told: Settings, store: FileStore, metrics: Metrics) -> Housekeeping:
    duties = told.duties
    task = Task(duties.dsn, NAMES, duties.selection, duties.hybrid, leader_pid=0, has_slot=False)
    return Housekeeping(duties, store, HybridTables(store, task), writer_id="one", metrics=metrics)


def _value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"tailrace_capture_{name}", {"source": "main"})


def _look_at_health(told: Settings, store: FileStore) -> Metrics:
    """One turn of a leader that does nothing else."""
    metrics, session = Metrics("main"), LockSession(told.duties.dsn)
    assert session.try_lock(NAMES.slot)
    housekeeping = _housekeeping(told, store, metrics)
    housekeeping._look_at_health()
    housekeeping._disconnect()
    session.close()
    return metrics


@pytest.mark.parametrize(("timeout_s", "is_stuck"), [(300.0, True), (3600.0, False)])
def test_f076_a_hand_over_is_stuck_when_its_settings_say_so(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    caplog: pytest.LogCaptureFixture,
    timeout_s: float,
    is_stuck: bool,
) -> None:
    oid = _by_trigger(database.dsn, "public.t", NAMES.slot)
    with connect(database.dsn) as conn:
        set_mode(conn, oid, Mode.TRANSITIONING, source=NAMES.slot, slot=NAMES.slot)
    source.execute(
        "UPDATE tailrace.change_tracking SET transition_started_at = now() - interval '1 hour'"
    )
    told = settings(database.dsn, hybrid=hybrid(transition_timeout_s=timeout_s))
    _look_at_health(told, store)
    assert ("its hand-over has been under way since" in caplog.text) == is_stuck


def test_a_slot_that_is_gone_keeps_no_wal(database: Database, source: psycopg.Connection) -> None:
    metrics = Metrics("main")
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (NAMES.slot,))
    with connect(database.dsn) as conn:
        observe_retained(conn, read_slot(conn, NAMES.slot), metrics)
        assert (_value(metrics, "retained_wal_bytes") or 0) > 0
        drop_slot(conn, NAMES.slot)
        observe_retained(conn, read_slot(conn, NAMES.slot), metrics)
    assert _value(metrics, "retained_wal_bytes") == 0


def test_f073_without_a_slot_the_lag_is_the_age_of_the_oldest_buffered_row(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    oid = _by_trigger(database.dsn, "public.t", NAMES.slot)
    source.execute("INSERT INTO t VALUES (1, 'a')")
    source.execute(statement("UPDATE {} SET ts = ts - interval '2 hours'", buffer(oid)))
    metrics = _look_at_health(settings(database.dsn, hybrid=hybrid()), store)
    assert 7200 <= (_value(metrics, "lag_seconds") or 0) < 7300


def test_alerts_of_another_source_are_not_counted(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE public.other (id int PRIMARY KEY)")
    _by_trigger(database.dsn, "public.t", NAMES.slot)
    _by_trigger(database.dsn, "public.other", "tailrace_other")
    told = settings(database.dsn, hybrid=hybrid())
    assert _value(_look_at_health(told, store), "alerts") == 0
    source.execute("ALTER TABLE public.t DISABLE TRIGGER ALL")
    assert _value(_look_at_health(told, store), "alerts") == 1
