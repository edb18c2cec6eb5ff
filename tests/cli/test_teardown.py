"""`tailrace teardown`: asks first, never under a leader's feet, and leaves room for a new start."""

from __future__ import annotations

import io

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli.project import Project
from tests.server import Database


def made(connection: psycopg.Connection) -> int:
    """How many slots and publications there are."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_nothing_is_dropped_without_a_yes_or_while_capture_leads(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure(database.dsn)
    with database.connect() as admin:
        with project.capturing():
            code, error, hint = project.run("teardown", "--yes", "--log").failure
            assert (code, error) == (1, "a capture process leads slot tailrace_test")
            assert hint == "stop it first"
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        ended = project.run("teardown", "--log")
        assert ended.code == 1
        assert "slot tailrace_test" in ended.out and project.store.url in ended.out
        assert made(admin) == 3
        assert project.run("log", "verify").code == 0
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        assert project.run("teardown").code == 0
        assert made(admin) == 0
    assert project.run("log", "verify").code == 0
    code, error, hint = project.run("capture").failure
    assert code == 1
    assert "slot tailrace_test does not exist" in error and "teardown" in hint


def test_after_all_is_gone_a_new_log_begins(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with project.capturing():
            admin.execute("INSERT INTO t VALUES (1)")
            project.await_captured(admin)
        project.store.put_new("mine/notes.txt", b"not of the log")
        assert project.run("teardown", "--yes", "--log").code == 0
        assert made(admin) == 0
        assert [entry.key for entry in project.store.list("")] == ["mine/notes.txt"]
        assert project.run("teardown", "--yes", "--log").code == 0
        admin.execute("TRUNCATE t")
        with project.capturing():
            admin.execute("INSERT INTO t VALUES (2)")
            project.await_captured(admin)
    assert project.run("log", "cat").json["id"] == 2


def test_the_log_of_another_source_stays_and_nothing_is_dropped(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn)
    with project.capturing():
        pass
    before = project.store.list("")
    elsewhere = make_conninfo(database.dsn, dbname="postgres")
    for dsn, source in ((database.dsn, "other"), (elsewhere, "other")):
        project.configure(dsn, source=source)
        code, error, hint = project.run("teardown", "--yes", "--log").failure
        assert code == 2
        assert "belongs to" in error and "log.url" in hint
        assert project.store.list("") == before
    with database.connect() as admin:
        assert made(admin) == 3


def test_triggers_and_their_schemas_go_with_the_last_source(
    project: Project, database: Database
) -> None:
    schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'tailrace%'"
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'tailrace%'"
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        project.configure(database.dsn, mode="trigger")
        with project.running("capture") as capture:
            capture.await_line("table taken up by triggers table=public.t")
            admin.execute("INSERT INTO t VALUES (1)")
            assert capture.stop().code == 0, capture.text
        assert admin.execute(triggers).fetchone() == (2,)
        assert project.run("teardown", "--yes", "--log").code == 0
        assert admin.execute(triggers).fetchone() == (0,)
        assert admin.execute(schemas).fetchone() == (0,)
        assert made(admin) == 0
