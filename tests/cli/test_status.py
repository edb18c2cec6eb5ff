"""`tailrace status`: at a glance, and as JSON; exit 1 if something needs a person."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from tailrace.control.schema import migrate
from tailrace.control.streams import reporting
from tailrace.control.tracking import ALERT_CHANNEL, Mode, track
from tailrace.log.retention import put_reader_position
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import identifier, statement
from tailrace.postgres.session import Connection, connect
from tests.buffered import table_of
from tests.cli.project import Project
from tests.server import Database


def test_before_the_start_nothing_is_wrong(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    ended = project.run("status", "--json")
    assert ended.code == 0
    assert ended.json["source"]["state"] == "not begun"
    assert ended.json["log"]["start"] is None
    assert ended.json["streams"][0]["position"] is None
    assert not (project.directory / "log").exists()


def test_slot_tables_log_and_streams(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    project.configure(database.dsn)
    with database.connect() as admin:
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
        admin.execute("CREATE TABLE keyless (id int)")
        with project.capturing():
            admin.execute("INSERT INTO good VALUES (1)")
            end = project.await_captured(admin)
            put_reader_position(project.store, "lake", end)
            ended = project.run("status", "--json")
            assert ended.code == 0
            found = ended.json
            assert set(found) == {"source", "log", "streams"}
            assert found["source"]["state"] == "streaming"
            assert found["source"]["tables"] == ["public.good"]
            (left_out,) = found["source"]["left_out"]
            assert left_out["table"] == "public.keyless"
            assert "has no primary key" in left_out["reason"]
            assert found["log"]["segment_end"] == str(end)
            (stream,) = found["streams"]
            assert (stream["position"], stream["lag_bytes"], stream["lag_s"]) == (str(end), 0, 0)
            text = project.run("status").out
            assert "streaming" in text and "public.keyless" in text and "has everything" in text
        # Nobody captures, and the server keeps its wal for us.
        ended = project.run("status", "--json")
        assert (ended.code, ended.json["source"]["state"]) == (1, "idle")
        admin.execute("SELECT pg_drop_replication_slot('tailrace_test')")
    ended = project.run("status", "--json")
    assert (ended.code, ended.json["source"]["state"]) == (1, "missing")


def test_a_stream_that_has_stopped_is_told_although_it_is_at_the_end_of_the_log(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    project.configure(database.dsn)
    with database.connect() as admin:
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
        with project.capturing():
            admin.execute("INSERT INTO good VALUES (1)")
            put_reader_position(project.store, "lake", project.await_captured(admin))
            _declare_stopped(admin, "table public.good has no key")
            ended = project.run("status", "--json")
            (stream,) = ended.json["streams"]
            assert (ended.code, stream["stopped"]) == (1, "table public.good has no key")
            text = project.run("status").out
            assert "stopped: table public.good has no key" in text
            assert "has everything" not in text


def _declare_stopped(admin: Connection, reason: str) -> None:
    """As a pipeline does that cannot go on."""
    names = {"source": "tailrace_test", "name": "lake", "reason": reason}
    migrate(admin)
    with reporting(admin):
        admin.execute(
            "INSERT INTO tailrace.streams (source, name, tables, sink)"
            " VALUES (%(source)s, %(name)s, '{public.*}', '{\"type\": \"console\"}')",
            names,
        )
        admin.execute(
            "UPDATE tailrace.streams SET status = 'stopped', reason = %(reason)s"
            " WHERE source = %(source)s AND name = %(name)s",
            names,
        )


def test_f078_what_the_health_check_finds_needs_a_person_and_what_it_finds_of_others_does_not(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    project.configure(database.dsn, mode="trigger", tables=["public.good"])
    with database.connect() as admin, connect(database.dsn) as conn:
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
        admin.execute("CREATE TABLE other (id int PRIMARY KEY)")
        with project.running("capture") as capture:
            capture.await_line("table taken up by triggers")
            assert capture.stop().code == 0
        # Nobody captures it, and its trigger is missing.
        track(conn, table_of(conn, "public.other"), source="tailrace_other", mode=Mode.TRIGGER)
        leader = LockSession(database.dsn)
        assert leader.try_lock("tailrace_test")
        ended = project.run("status", "--json")
        assert (ended.code, ended.json["source"]["alerts"]) == (0, [])
        admin.execute("ALTER TABLE good DISABLE TRIGGER ALL")
        admin.execute(statement("LISTEN {}", identifier(ALERT_CHANNEL)))
        ended = project.run("status", "--json")
        assert (ended.code, ended.json["source"]["state"]) == (1, "draining")
        (alert,) = ended.json["source"]["alerts"]
        assert alert["table"] == "public.good" and "is disabled" in alert["reason"]
        lines = project.run("status").out.splitlines()
        (line,) = (line for line in lines if line.startswith("alert"))
        assert "public.good" in line and "is disabled" in line
        assert list(admin.notifies(timeout=0.1)) == [], "who only looks does not ring the bell"
        leader.close()


def test_the_log_is_shown_although_postgres_is_away(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    with project.capturing():
        pass
    project.configure(make_conninfo(database.tcp_dsn, port="1", password="hunter2"))
    ended = project.run("status", "--json")
    assert ended.code == 1
    assert ended.json["source"]["state"] == "unknown"
    assert ended.json["source"]["error"] == "nothing listens at 127.0.0.1:1"
    assert ended.json["log"]["object_count"] == 1
    assert "hunter2" not in ended.out + ended.err


def test_a_log_of_another_database_is_told_and_not_measured(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn)
    with project.capturing():
        pass
    project.configure(make_conninfo(database.dsn, dbname="postgres"))
    ended = project.run("status", "--json")
    assert (ended.code, ended.json["source"]["state"]) == (1, "unknown")
    assert "belongs to another database" in ended.json["source"]["error"]
    assert ended.json["log"]["lag_bytes"] is None
