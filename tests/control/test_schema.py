"""The control schemas are made once, whoever comes first, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tailrace.control.schema import (
    installed_version,
    latest_version,
    migrate,
    remove,
    watch_ddl,
)
from tailrace.errors import SourceError
from tailrace.postgres.session import Connection, connect
from tests.capture.running import wait_until
from tests.server import Database

KILLED = """
import sys
from tailrace.control import schema
from tailrace.postgres.session import connect
getattr(schema, sys.argv[2])(connect(sys.argv[1]))
"""


def _objects(conn: Connection) -> list[tuple[str, int]]:
    return conn.execute(
        """SELECT n.nspname::text, c.relname::text FROM pg_class AS c
             JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE starts_with(n.nspname, 'tailrace') ORDER BY 1, 2"""
    ).fetchall()


def test_migrations_are_applied_once(capture: Connection) -> None:
    assert installed_version(capture) == 0
    migrate(capture)
    before = _objects(capture)
    migrate(capture)
    assert installed_version(capture) == latest_version()
    assert _objects(capture) == before


def test_of_two_nodes_that_start_at_once_one_migrates(capture_dsn: str) -> None:
    sessions = [connect(capture_dsn) for _ in range(4)]
    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(migrate, sessions))
    assert installed_version(sessions[0]) == latest_version()
    for session in sessions:
        session.close()


def test_a_superuser_may_watch_ddl_and_others_need_not(
    admin: Connection, capture: Connection
) -> None:
    migrate(capture)
    migrate(admin)
    # The function belongs to a role that could change it: a superuser does not run it for others.
    assert admin.execute("SELECT tailrace.watches_ddl()").fetchone() == (False,)
    remove(capture)
    migrate(admin)
    assert admin.execute("SELECT tailrace.watches_ddl()").fetchone() == (True,)


def test_of_two_nodes_that_watch_ddl_at_once_neither_fails(
    source: Database, admin: Connection
) -> None:
    migrate(admin)
    admin.execute("DROP EVENT TRIGGER tailrace_on_alter")
    admin.execute("DROP EVENT TRIGGER tailrace_on_drop")
    with ThreadPoolExecutor(1) as pool, connect(source.dsn) as other:
        with admin.transaction():
            watch_ddl(admin)
            late = pool.submit(migrate, other)
            wait_until(lambda: _waits(admin, other.info.backend_pid))
        late.result()
        assert other.execute("SELECT tailrace.watches_ddl()").fetchone() == (True,)


def _waits(conn: Connection, pid: int) -> bool:
    query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    return conn.execute(query, (pid,)).fetchone() == (True,)


@pytest.mark.parametrize("time", [1, 2])
def test_a_node_killed_while_it_migrates_leaves_nothing_half_made(
    capture_dsn: str, capture: Connection, time: int
) -> None:
    _die_at(f"control.after_migration:{time}", capture_dsn, "migrate")
    assert installed_version(capture) == 0
    migrate(capture)
    assert installed_version(capture) == latest_version()


def test_a_node_killed_while_it_removes_the_schemas_leaves_all_that_there_was(
    source: Database, admin: Connection
) -> None:
    migrate(admin)
    there = _objects(admin)
    _die_at("control.before_drop", source.dsn, "remove")
    assert _objects(admin) == there
    assert admin.execute("SELECT tailrace.watches_ddl()").fetchone() == (True,)
    remove(admin)
    assert installed_version(admin) == 0


def _die_at(step: str, dsn: str, what: str) -> None:
    """A process that ends at the step of what it does to the schemas."""
    environment = {**os.environ, "TAILRACE_FAILPOINT": step}
    killed = subprocess.run([sys.executable, "-c", KILLED, dsn, what], env=environment)
    assert killed.returncode == 137


def test_a_schema_of_a_newer_version_is_refused(controlled: Connection) -> None:
    query = "INSERT INTO tailrace.migrations (version, name) VALUES (%s, 'later')"
    controlled.execute(query, (latest_version() + 1,))
    with pytest.raises(SourceError, match="is of version"):
        migrate(controlled)


def test_a_role_without_the_right_is_told_which_it_lacks(
    source: Database, admin: Connection
) -> None:
    admin.execute("CREATE ROLE poor LOGIN")
    with (
        connect(make_conninfo(source.dsn, user="poor")) as conn,
        pytest.raises(SourceError, match="may not make") as raised,
    ):
        migrate(conn)
    assert "GRANT CREATE ON DATABASE" in raised.value.hint


def test_schemas_given_to_the_role_are_enough(source: Database, admin: Connection) -> None:
    admin.execute("CREATE ROLE modest LOGIN")
    for schema in ("tailrace", "tailrace_changes"):
        admin.execute(
            psycopg.sql.SQL("CREATE SCHEMA {} AUTHORIZATION modest").format(
                psycopg.sql.Identifier(schema)
            )
        )
    with connect(make_conninfo(source.dsn, user="modest")) as conn:
        migrate(conn)
        assert installed_version(conn) == latest_version()


def test_removal_leaves_nothing(admin: Connection) -> None:
    migrate(admin)
    remove(admin)
    assert _objects(admin) == []
    assert admin.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
    remove(admin)


def test_nobody_else_may_call_or_read_what_is_ours(
    source: Database, controlled: Connection, admin: Connection
) -> None:
    admin.execute("CREATE ROLE stranger LOGIN")
    with connect(make_conninfo(source.dsn, user="stranger")) as conn:
        for query in (
            "SELECT * FROM tailrace.change_tracking",
            "SELECT tailrace.sync_capture(0::oid)",
            "CREATE TABLE tailrace_changes.mine (a int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(query)
