"""Names that would make a table unreadable or ambiguous are found, and harm no other table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql

from tailrace.postgres.catalog import relation_names, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.session import Connection, connect
from tests.postgres.names import HOSTILE
from tests.server import Servers


def _blockers(conn: Connection, pattern: str = "*.*") -> dict[tuple[str, str], str]:
    """By schema and table, what keeps it out."""
    found = {}
    for table in tables_matching(conn, [pattern]):
        blockers = [f for f in table_findings(conn, table) if f.severity is Severity.BLOCKER]
        if blockers:
            found[table.schema, table.name] = f"{blockers[0].message} | {blockers[0].fix}"
    return found


@pytest.fixture
def ascii_session(source_servers: Servers, version: int) -> Iterator[Connection]:
    """In a database without an encoding."""
    with source_servers(version).database("SQL_ASCII") as database, connect(database.dsn) as conn:
        yield conn


def test_f066_names_without_an_encoding_are_refused_and_hide_no_other(
    ascii_session: Connection,
) -> None:
    # A client of latin 1 would have sent these bytes; here the server makes them.
    make = sql.SQL(
        "DO $do$ BEGIN EXECUTE format('CREATE TABLE public.%I (id int PRIMARY KEY, %I int)', {});"
        " END $do$"
    )
    for names in ("'fine', 'a'", r"E'caf\351', 'a'", r"'odd', E'na\303\257ve'"):
        ascii_session.execute(make.format(sql.SQL(names)))
    assert len(relation_names(ascii_session)) == 3
    blocked = _blockers(ascii_session)
    assert set(blocked) == {("public", "caf\ufffd"), ("public", "odd")}
    assert all("unknown letters" in message for message in blocked.values())


def test_f069_two_tables_whose_full_names_read_the_same_are_refused(app: Connection) -> None:
    app.execute("RESET ROLE")
    for schema, table in (("app", "b.c"), ("app.b", "c"), ("app", "d.e")):
        app.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        name = sql.Identifier(schema, table)
        app.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(name))
    blocked = _blockers(app)
    assert set(blocked) == {("app", "b.c"), ("app.b", "c")}
    assert 'cannot be told from "app.b"."c"' in blocked["app", "b.c"]
    assert 'ALTER TABLE "app"."b.c" RENAME TO "b_c";' in blocked["app", "b.c"]


def test_f069_hostile_names_are_fine(app: Connection) -> None:
    app.execute("RESET ROLE")
    for name in HOSTILE:
        create = sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY)")
        app.execute(create.format(sql.Identifier(name), sql.Identifier(name)))
    assert _blockers(app) == {}
