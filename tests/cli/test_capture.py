"""`tailrace capture`: what a user sees when it cannot start, stands by, or meets a full disk."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.cli.project import Project
from tests.s3 import s3_server
from tests.server import Database, ServerFactory

SECRET = "hunter2-is-secret"


@pytest.fixture
def app_dsn(database: Database) -> Iterator[str]:
    """The DSN of a role that owns nothing but may make a publication."""
    name = sql.Identifier(database.name)
    with database.connect() as admin:
        admin.execute("CREATE ROLE app LOGIN REPLICATION")
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO app").format(name))
        yield make_conninfo(database.dsn, user="app")
        admin.execute("DROP OWNED BY app")


def test_a_dsn_that_is_none_is_wrong_use_and_its_password_stays_unseen(project: Project) -> None:
    project.configure(f"postgresql//ann:{SECRET}@db/shop")
    ended = project.run("capture")
    code, error, hint = ended.failure
    assert code == 2
    assert "tailrace.yaml:1: source.dsn is not a connection string" in error
    assert "postgresql://user:password@host" in hint
    assert SECRET not in ended.err


@pytest.mark.parametrize("command", [["capture"], ["check"], ["teardown", "--yes"]])
def test_a_server_that_is_not_there(project: Project, command: list[str]) -> None:
    project.configure(f"postgresql://ann:{SECRET}@127.0.0.1:1/shop")
    ended = project.run(*command)
    assert ended.failure == (
        1,
        "nothing listens at 127.0.0.1:1",
        "start postgres, or correct host and port in source.dsn",
    )
    assert SECRET not in ended.err
    assert not (project.directory / "log").exists()


def test_a_host_that_is_unknown(project: Project) -> None:
    project.configure("postgresql://ann@nowhere.invalid/shop")
    code, error, hint = project.run("capture").failure
    assert (code, error) == (1, "host nowhere.invalid is unknown")
    assert "check the host" in hint


def test_f035_a_server_without_logical_wal_in_each_mode_and_a_wrong_password(
    project: Project, postgres_server: ServerFactory
) -> None:
    server = postgres_server({"wal_level": "replica"})
    project.configure(server.dsn)
    code, error, hint = project.run("capture").failure
    assert (code, error) == (1, "wal_level is replica, capture from the wal needs logical")
    assert hint == "ALTER SYSTEM SET wal_level = 'logical', then restart postgres"
    with server.connect() as admin:
        admin.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        row = admin.execute("SHOW hba_file").fetchone()
        assert row
        rules = Path(row[0])
        rules.write_text("host all locked all scram-sha-256\n" + rules.read_text())
        admin.execute("SELECT pg_reload_conf()")
    project.configure(make_conninfo(server.tcp_dsn, user="locked", password=SECRET))
    ended = project.run("capture")
    code, error, hint = ended.failure
    assert (code, error) == (1, "postgres refused the password of role locked")
    assert "~/.pgpass" in hint
    assert SECRET not in ended.err
    assert not (project.directory / "log").exists()
    project.configure(server.dsn, mode="auto")
    with server.connect() as admin, project.running("capture") as capture:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        capture.await_line("table taken up by triggers table=public.t")
        admin.execute("INSERT INTO t VALUES (1)")
        project.await_captured(admin)
        assert "TRIGGER" in project.run("status").out
        assert capture.stop().code == 0, capture.text


def test_f034_a_server_without_a_free_slot(
    project: Project, postgres_server: ServerFactory
) -> None:
    server = postgres_server({"max_replication_slots": "1"})
    with server.connect() as admin:
        admin.execute("SELECT pg_create_physical_replication_slot('other')")
        project.configure(server.dsn)
        code, error, hint = project.run("capture").failure
        assert code == 1
        assert error == "slot tailrace_test cannot be made: all replication slots are in use"
        assert "max_replication_slots" in hint
        admin.execute("SELECT pg_drop_replication_slot('other')")
    # What was begun is finished once there is room.
    with project.capturing():
        pass


def test_f035_a_role_that_may_not_replicate(
    project: Project, database: Database, app_dsn: str
) -> None:
    with database.connect() as admin:
        admin.execute("ALTER ROLE app NOREPLICATION")
    project.configure(app_dsn)
    code, error, hint = project.run("capture").failure
    assert (code, error) == (1, "role app may not replicate")
    assert "REPLICATION" in hint


def test_f035_a_table_of_somebody_else(project: Project, database: Database, app_dsn: str) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    project.configure(app_dsn, tables=["public.orders"])
    code, error, hint = project.run("capture").failure
    assert code == 1
    assert error == "public.orders belongs to postgres: only its owner may publish it"
    with database.connect() as admin:
        assert admin.execute("SELECT FROM pg_replication_slots").fetchall() == []
    assert 'ALTER TABLE "public"."orders" OWNER TO "app"' in hint


def test_a_table_that_does_not_exist_is_wrong_use_and_the_nearest_is_named(
    project: Project, database: Database
) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        project.configure(database.dsn, tables=["public.*", "public.ordres"])
        ended = project.run("capture")
        assert ended.failure == (
            2,
            "public.ordres matches no table",
            "did you mean public.orders?",
        )
        assert admin.execute("SELECT FROM pg_replication_slots").fetchall() == []


@pytest.mark.parametrize(
    ("statement", "words", "cure"),
    [
        ("CREATE TABLE t (id int)", "public.t has no primary key", "ADD PRIMARY KEY"),
        (
            "CREATE UNLOGGED TABLE t (id int PRIMARY KEY)",
            "public.t is unlogged",
            "SET LOGGED",
        ),
    ],
)
def test_a_table_that_cannot_be_taken_is_an_error_if_named_and_left_out_if_not(
    project: Project, database: Database, statement: str, words: str, cure: str
) -> None:
    with database.connect() as admin:
        admin.execute(statement.encode())
        project.configure(database.dsn, tables=["public.t"])
        code, error, hint = project.run("capture").failure
        assert code == 1
        assert words in error and cure in hint
        # Whoever gives up now leaves no slot behind, for which the server would keep its wal.
        assert admin.execute("SELECT FROM pg_replication_slots").fetchall() == []
        assert admin.execute("SELECT FROM pg_publication").fetchall() == []
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
        project.configure(database.dsn)
        with project.capturing() as capture:
            capture.await_line("table left out table=public.t")
            admin.execute("INSERT INTO good VALUES (1)")
            project.await_captured(admin)
    assert project.run("log", "cat", "--table", "public.good").json["_op"] == "insert"


def test_a_log_of_another_database_is_wrong_use_and_stays_as_it_is(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn)
    with project.capturing():
        pass
    before = project.store.list("segments/")
    project.configure(make_conninfo(database.dsn, dbname="postgres"))
    code, error, hint = project.run("capture").failure
    assert code == 2
    assert "belongs to another database" in error and "log.url" in hint
    project.configure(database.dsn, source="other")
    code, error, hint = project.run("capture").failure
    assert code == 2
    assert "belongs to slot tailrace_test" in error and "source.name" in hint
    assert project.store.list("segments/") == before


def test_a_second_one_stands_by_and_takes_over(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    with database.connect() as admin, project.running("capture") as first:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        first.await_line("streaming slot=")
        with project.running("capture") as second:
            second.await_line("standing by: another process leads slot=tailrace_test")
            first.process.kill()
            second.await_line("streaming slot=")
            admin.execute("INSERT INTO t VALUES (1)")
            project.await_captured(admin)
            assert second.stop(signal.SIGINT).code == 0
    assert project.run("log", "verify", "--json").json["change_count"] == 1


def test_f088_a_full_disk_is_said_and_loses_nothing(project: Project, database: Database) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    project.configure(database.dsn)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, noise bytea)")
        with project.running("capture", limit=no_large_files) as capture:
            capture.await_line("streaming slot=")
            admin.execute(
                "INSERT INTO t SELECT n, decode(string_agg(md5(n || ' ' || m), ''), 'hex')"
                " FROM generate_series(1, 3) AS n, generate_series(1, 10000) AS m GROUP BY n"
            )
            capture.await_line("file too large")
            assert capture.stop().code == 0
        with project.capturing():
            project.await_captured(admin)
    assert project.run("log", "verify", "--json").json["change_count"] == 3


def test_a_bucket_that_does_not_exist(project: Project, database: Database) -> None:
    with s3_server(secret=SECRET):
        project.configure(database.dsn, log="s3://missing/log")
        for command in (["capture"], ["status"], ["log", "ls"]):
            ended = project.run(*command)
            code, error, hint = ended.failure
            assert code == 1
            assert "s3://missing/log: NoSuchBucket" in error
            assert hint == "make the bucket, or correct its name"
            assert SECRET not in ended.err
    with database.connect() as admin:
        assert admin.execute("SELECT FROM pg_replication_slots").fetchall() == []


def test_a_configuration_that_cannot_be_read(project: Project) -> None:
    project.config.mkdir()
    code, error, _ = project.run("capture").failure
    assert code == 2
    assert error == f"cannot read {project.config}: is a directory"


def test_an_unknown_key_is_wrong_use(project: Project) -> None:
    project.config.write_text("source: {nam: main}\n")
    code, error, hint = project.run("capture").failure
    assert code == 2
    assert "tailrace.yaml:1: unknown key source.nam" in error
    assert "name" in hint
