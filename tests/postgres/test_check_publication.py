"""Publications and slots that are not as capture would have made them."""

from __future__ import annotations

from typing import LiteralString

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.postgres.check_publication import publication_findings, slot_findings
from tailrace.postgres.finding import Finding, Severity
from tailrace.postgres.publication import create_publication
from tailrace.postgres.server import read_server
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.slot import create_slot, read_slot
from tests.server import Database

NAME = "tailrace_main"


def _publication(conn: Connection, *, is_in_use: bool = False) -> list[Finding]:
    return publication_findings(conn, NAME, read_server(conn), is_in_use=is_in_use)


def _slot(conn: Connection) -> list[Finding]:
    return slot_findings(read_slot(conn, NAME), read_server(conn))


def test_what_we_make_ourselves_has_no_findings(capture: Connection) -> None:
    assert _publication(capture) == _slot(capture) == []
    create_publication(capture, NAME)
    create_slot(capture, NAME, lock_timeout_ms=5000)
    assert _publication(capture) == _slot(capture) == []


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("FOR ALL TABLES WITH (publish_via_partition_root = true)", "FOR ALL TABLES"),
        ("FOR TABLES IN SCHEMA app WITH (publish_via_partition_root = true)", "IN SCHEMA"),
        (
            "FOR TABLE app.t WHERE (a > 1) WITH (publish_via_partition_root = true)",
            "row filter or column list on app.t",
        ),
        (
            "FOR TABLE app.t (a) WITH (publish_via_partition_root = true)",
            "row filter or column list on app.t",
        ),
        (
            "WITH (publish = 'insert', publish_via_partition_root = true)",
            "publish every change",
        ),
        ("WITH (publish_via_partition_root = false)", "instead of their root"),
    ],
)
def test_a_publication_made_by_hand_is_a_finding_with_its_fix(
    admin: Connection, app: Connection, definition: LiteralString, message: str
) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    admin.execute(sql.SQL("CREATE PUBLICATION tailrace_main {}").format(sql.SQL(definition)))
    (finding,) = _publication(admin)
    assert (finding.severity, finding.subject) == (Severity.BLOCKER, f"publication {NAME}")
    assert message in finding.message
    admin.execute(finding.fix)
    assert _publication(admin) == []


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ('SET TABLE app."T 1" WHERE (a > 1), app.u', 'DROP TABLE ONLY "app"."T 1"'),
        ('SET TABLE app."T 1" (a), app.u', 'DROP TABLE ONLY "app"."T 1"'),
        ("ADD TABLES IN SCHEMA app", 'DROP TABLES IN SCHEMA "app"'),
        (
            "SET (publish = 'insert')",
            "SET (publish = 'insert, update, delete, truncate')",
        ),
    ],
)
def test_f061_a_publication_in_use_is_set_right_without_being_dropped(
    admin: Connection, app: Connection, change: LiteralString, fix: str
) -> None:
    create_publication(admin, NAME)
    for table in ('app."T 1"', "app.u"):
        app.execute(sql.SQL("CREATE TABLE {} (a int PRIMARY KEY, b int)").format(sql.SQL(table)))
        add = sql.SQL("ALTER PUBLICATION tailrace_main ADD TABLE {}")
        admin.execute(add.format(sql.SQL(table)))
    admin.execute(sql.SQL("ALTER PUBLICATION tailrace_main {}").format(sql.SQL(change)))
    (finding,) = _publication(admin, is_in_use=True)
    assert finding.severity is Severity.BLOCKER
    assert finding.fix == f'ALTER PUBLICATION "tailrace_main" {fix};'
    admin.execute(finding.fix)
    assert _publication(admin, is_in_use=True) == []


def test_f035_a_publication_of_another_owner_comes_with_the_fix(
    admin: Connection, capture: Connection
) -> None:
    create_publication(admin, NAME)
    (finding,) = _publication(capture)
    assert "belongs to postgres" in finding.message
    admin.execute(finding.fix)
    assert _publication(capture) == []


def test_f035_a_role_that_cannot_make_it_comes_with_the_grant(
    admin: Connection, capture: Connection, source: Database
) -> None:
    revoke = sql.SQL("REVOKE CREATE ON DATABASE {} FROM capture")
    admin.execute(revoke.format(sql.Identifier(source.name)))
    (finding,) = _publication(capture)
    assert finding.subject == "role capture"
    admin.execute(finding.fix)
    assert _publication(capture) == []


def test_a_slot_of_another_kind_or_database_is_a_finding(
    admin: Connection, source: Database
) -> None:
    create_slot(admin, NAME, lock_timeout_ms=5000)
    with connect(make_conninfo(source.dsn, dbname="postgres")) as elsewhere:
        (finding,) = _slot(elsewhere)
        assert f"belongs to database {source.name}" in finding.message
    admin.execute("SELECT pg_drop_replication_slot(%s)", (NAME,))
    admin.execute("SELECT pg_create_physical_replication_slot(%s)", (NAME,))
    (finding,) = _slot(admin)
    assert "was not made by tailrace" in finding.message
