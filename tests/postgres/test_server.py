"""What a server says about itself."""

from __future__ import annotations

from pathlib import Path

from tailrace.postgres.server import read_server, wal_position
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.slot import create_slot
from tests.postgres.walsender import streaming
from tests.server import Database, ServerFactory


def test_a_role_without_privileges_reads_every_fact(source: Database, capture: Connection) -> None:
    server = read_server(capture)
    assert server.version_num // 10000 == source.server.version
    assert server.timeline == 1
    assert (server.database, server.role) == (source.name, "capture")
    assert (server.wal_level, server.encoding) == ("logical", "UTF8")
    assert server.may_replicate and server.may_create
    assert not (server.is_superuser or server.in_recovery or server.is_proxied)
    with source.connect() as admin:
        row = admin.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        assert row == (server.system_id,)


def test_the_wal_position_never_goes_back(app: Connection, capture: Connection) -> None:
    before = wal_position(capture)
    app.execute("CREATE TABLE t (a int)")
    assert before < wal_position(capture)


def test_own_slot_and_its_sender_are_not_counted(admin: Connection, source: Database) -> None:
    admin.execute("CREATE PUBLICATION tailrace_main")
    create_slot(admin, "tailrace_main", lock_timeout_ms=1000)
    with streaming(source.dsn, "tailrace_main", application_name="tailrace"):
        mine = read_server(admin, slot="tailrace_main")
        assert (mine.other_slot_count, mine.other_sender_count) == (0, 0)
        foreign = read_server(admin, slot="tailrace_other")
        assert (foreign.other_slot_count, foreign.other_sender_count) == (1, 1)


def test_a_managed_service_replicates_by_membership(admin: Connection) -> None:
    with admin.transaction(force_rollback=True):
        admin.execute("CREATE ROLE rds_replication")
        admin.execute("CREATE ROLE ann")
        admin.execute("SET LOCAL ROLE ann")
        outside = read_server(admin)
        admin.execute("RESET ROLE")
        admin.execute("GRANT rds_replication TO ann")
        admin.execute("SET LOCAL ROLE ann")
        inside = read_server(admin)
    assert outside.is_managed and not outside.may_replicate
    assert inside.is_managed and inside.may_replicate


def test_a_standby_is_told_from_a_primary(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    with connect(server.dsn) as conn:
        primary = read_server(conn)
        row = conn.execute("SHOW data_directory").fetchone()
    assert row
    server.stop()
    (Path(row[0]) / "standby.signal").touch()
    server.start()
    with connect(server.dsn) as conn:
        standby = read_server(conn)
        assert wal_position(conn) > 0
    assert standby.in_recovery and not primary.in_recovery
    assert (standby.system_id, standby.timeline) == (primary.system_id, primary.timeline)
