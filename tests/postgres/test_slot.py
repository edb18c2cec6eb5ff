"""The slot: made with a bounded wait, classified by its state, dropped only if ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from tailrace.errors import ConfigError, SlotLost, SourceError
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection, connect, connect_error, conninfo
from tailrace.postgres.slot import classify, create_slot, drop_slot, read_slot
from tests.postgres.walsender import streaming
from tests.server import Database, ServerFactory

NAME = "tailrace_main"


@pytest.fixture
def slot(capture: Connection) -> str:
    capture.execute("CREATE PUBLICATION tailrace_main")
    create_slot(capture, NAME, lock_timeout_ms=5000)
    return NAME


def test_a_new_slot_starts_where_it_says(source: Database, capture: Connection) -> None:
    assert read_slot(capture, NAME) is None
    before = wal_position(capture)
    start = create_slot(capture, NAME, lock_timeout_ms=5000)
    state = read_slot(capture, NAME)
    assert state is not None
    assert before <= start == state.confirmed_flush_lsn
    assert state.restart_lsn is not None and state.restart_lsn <= start
    assert (state.plugin, state.database) == ("pgoutput", source.name)
    assert (state.wal_status, state.invalidation) == ("reserved", None)
    assert not (state.is_active or state.is_temporary or state.is_two_phase or state.is_failover)
    assert not state.is_lost


def test_f025_an_open_transaction_is_named_and_leaves_no_slot(
    app: Connection, capture: Connection
) -> None:
    with app.transaction():
        app.execute("CREATE TABLE t (a int)")
        with pytest.raises(SourceError, match=rf"pid {app.info.backend_pid} \(shop") as caught:
            create_slot(capture, NAME, lock_timeout_ms=50)
        assert caught.value.retry
        assert read_slot(capture, NAME) is None
    assert create_slot(capture, NAME, lock_timeout_ms=5000)


def test_f025_a_prepared_transaction_is_named_and_leaves_no_slot(
    source: Database, capture: Connection
) -> None:
    with psycopg.connect(source.dsn) as forgetful:
        forgetful.execute("CREATE TABLE public.t (a int)")
        forgetful.execute("PREPARE TRANSACTION 'forgotten one'")
    with pytest.raises(SourceError, match="prepared transaction 'forgotten one'") as caught:
        create_slot(capture, NAME, lock_timeout_ms=50)
    assert caught.value.retry and "ROLLBACK PREPARED" in caught.value.hint
    assert read_slot(capture, NAME) is None
    with source.connect() as admin:
        admin.execute("ROLLBACK PREPARED 'forgotten one'")
    assert create_slot(capture, NAME, lock_timeout_ms=5000)


def test_f025_the_lock_timeout_does_not_outlive_the_making(capture: Connection) -> None:
    create_slot(capture, NAME, lock_timeout_ms=50)
    assert capture.execute("SHOW lock_timeout").fetchone() == ("5s",)


def test_a_slot_is_made_once(slot: str, capture: Connection) -> None:
    with pytest.raises(SourceError, match="exists already"):
        create_slot(capture, slot, lock_timeout_ms=5000)


def test_f035_a_role_without_replication_is_told_the_grant(
    admin: Connection, source: Database
) -> None:
    admin.execute("CREATE ROLE plain LOGIN")
    with connect(make_conninfo(source.dsn, user="plain")) as conn:
        with pytest.raises(SourceError, match="role plain may not make a slot") as caught:
            create_slot(conn, NAME, lock_timeout_ms=5000)
        assert caught.value.hint == 'ALTER ROLE "plain" REPLICATION'
        assert not caught.value.retry


def test_f034_f035_a_server_that_cannot_is_told_what_to_set(
    postgres_server: ServerFactory,
) -> None:
    server = postgres_server({"max_replication_slots": "1", "max_wal_senders": "1"})
    with connect(server.dsn) as conn:
        conn.execute("CREATE PUBLICATION tailrace_main")
        create_slot(conn, NAME, lock_timeout_ms=5000)
        with pytest.raises(SourceError, match="all replication slots are in use") as slots:
            create_slot(conn, "tailrace_other", lock_timeout_ms=5000)
        assert "max_replication_slots" in slots.value.hint
        with streaming(server.dsn, NAME, application_name="tailrace"):
            target = conninfo(server.dsn, replication=True)
            refused = pq.PGconn.connect(target.encode())
            senders = connect_error(refused.get_error_message(), target)
            refused.finish()
        assert "all wal senders" in str(senders) and senders.retry
        drop_slot(conn, NAME)
    server.stop()
    server.settings["wal_level"] = "replica"
    server.start()
    with connect(server.dsn) as conn:
        with pytest.raises(SourceError, match="wal_level is replica") as level:
            create_slot(conn, NAME, lock_timeout_ms=5000)
        assert "wal_level = 'logical'" in level.value.hint
        assert not level.value.retry


def test_failover_is_for_versions_that_have_it(source: Database, capture: Connection) -> None:
    if source.server.version < 17:
        with pytest.raises(ConfigError, match="17"):
            create_slot(capture, NAME, lock_timeout_ms=5000, failover=True)
        return
    create_slot(capture, NAME, lock_timeout_ms=5000, failover=True)
    state = read_slot(capture, NAME)
    assert state is not None and state.is_failover


def test_dropping_is_idempotent(slot: str, capture: Connection) -> None:
    drop_slot(capture, slot)
    assert read_slot(capture, slot) is None
    drop_slot(capture, slot)


def test_f033_a_left_over_walsender_of_ours_is_ended(
    slot: str, capture: Connection, capture_dsn: str
) -> None:
    with streaming(capture_dsn, slot, application_name="tailrace"):
        state = read_slot(capture, slot)
        assert state is not None and state.is_active
        drop_slot(capture, slot)
    assert read_slot(capture, slot) is None


def test_f033_a_walsender_of_another_is_left_alone(
    slot: str, capture: Connection, capture_dsn: str
) -> None:
    with streaming(capture_dsn, slot, application_name="pg_recvlogical") as foreign:
        with pytest.raises(SourceError, match=f"in use by pid {foreign.backend_pid}") as caught:
            drop_slot(capture, slot)
        assert caught.value.retry
        state = read_slot(capture, slot)
        assert state is not None and state.active_pid == foreign.backend_pid


def test_a_slot_of_another_database_is_not_dropped(slot: str, source: Database) -> None:
    with connect(make_conninfo(source.dsn, dbname="postgres")) as elsewhere:
        with pytest.raises(SourceError, match=f"belongs to database {source.name}"):
            drop_slot(elsewhere, slot)
        assert read_slot(elsewhere, slot) is not None


def test_f033_an_active_slot_is_tried_again(
    slot: str, capture: Connection, capture_dsn: str
) -> None:
    with streaming(capture_dsn, slot, application_name="tailrace") as sender:
        with pytest.raises(psycopg.errors.ObjectInUse) as caught:
            _peek(capture, slot)
        error = classify(caught.value, slot, read_slot(capture, slot))
        assert type(error) is SourceError and error.retry
        assert f"pid {sender.backend_pid}" in str(error)


def test_a_missing_slot_is_lost(capture: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject) as caught:
        _peek(capture, NAME)
    error = classify(caught.value, NAME, read_slot(capture, NAME))
    assert isinstance(error, SlotLost) and not error.retry


def test_a_missing_publication_is_not_a_lost_slot(
    slot: str, app: Connection, capture: Connection
) -> None:
    capture.execute("DROP PUBLICATION tailrace_main")
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    app.execute("INSERT INTO t VALUES (1)")
    error = classify(psycopg.errors.UndefinedObject(), slot, read_slot(capture, slot))
    assert type(error) is SourceError and "publication" in str(error)


def test_f027_an_invalidated_slot_is_lost_whatever_the_error_was(
    slot: str, admin: Connection
) -> None:
    with _little_wal_kept(admin):
        for _ in range(4):
            admin.execute("SELECT pg_logical_emit_message(false, 'tailrace.test', 'x')")
            admin.execute("SELECT pg_switch_wal()")
        admin.execute("CHECKPOINT")
        state = read_slot(admin, slot)
        assert state is not None and state.is_lost
        assert (state.wal_status, state.invalidation) == ("lost", "wal_removed")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as caught:
            _peek(admin, slot)
        for error in (caught.value, psycopg.errors.AdminShutdown()):
            assert isinstance(classify(error, slot, state), SlotLost)


@contextmanager
def _little_wal_kept(admin: Connection) -> Iterator[None]:
    names = ("max_slot_wal_keep_size", "min_wal_size", "max_wal_size")
    admin.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    admin.execute("ALTER SYSTEM SET min_wal_size = '32MB'")
    admin.execute("ALTER SYSTEM SET max_wal_size = '32MB'")
    admin.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        for name in names:
            admin.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
        admin.execute("SELECT pg_reload_conf()")


def _peek(conn: Connection, slot: str) -> None:
    conn.execute(
        """SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
               %s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)""",
        (slot, slot),
    )
