"""Can this table be captured, without harm to the application that writes it?

Publishing a table whose rows Postgres cannot identify makes the application's own UPDATE and DELETE
fail, so such a table is never published. A finding concerns its table only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import psycopg

from tailrace.model import META_COLUMNS, ReplicaIdentity
from tailrace.postgres.add_table import holds_rows
from tailrace.postgres.catalog import Kind, Persistence, TableInfo, read_leaves
from tailrace.postgres.finding import Finding, blocker, info, warning
from tailrace.postgres.quote import identifier, qualified, shown
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error

# publicationcmds.c, "replica identity must not contain unpublished generated columns".
_GENERATED_REFUSED_VERSION: Final = 180000

_KIND_NAMES: Final = {
    Kind.FOREIGN: "a foreign table: its rows are not in this server's wal",
    Kind.VIEW: "a view: it has no rows of its own",
    Kind.MATERIALIZED_VIEW: "a materialised view: its rows are not replicated",
}


def table_findings(
    conn: Connection, table: TableInfo, *, is_published: bool = False
) -> list[Finding]:
    """Everything about one table; one that is published already has been read."""
    if not table.is_table:
        return [_not_a_table(table)]
    findings = [*_storage(table), *_identity(table), *_columns(table)]
    findings += [*_generated(table, conn.info.server_version), *_rights(table, conn.info.user)]
    if table.kind is Kind.PARTITIONED:
        findings += _leaves(conn, table)
    if table.has_children:
        findings.append(
            info(table.qualified, "has children by inheritance: each is a table of its own")
        )
    if not is_published and table.is_readable:
        findings += _rows(conn, table)
    return findings


def _not_a_table(table: TableInfo) -> Finding:
    if table.is_partition:
        return blocker(
            table.qualified,
            "is a partition: changes are published through the root of its table",
            "name the root in capture.tables",
        )
    return blocker(
        table.qualified, f"is {_KIND_NAMES[table.kind]}", "leave it out of capture.tables"
    )


def _storage(table: TableInfo) -> Iterator[Finding]:
    if table.persistence is Persistence.UNLOGGED:
        name = qualified(table.schema, table.name)
        yield blocker(
            table.qualified,
            "is unlogged: its changes are not in the wal",
            shown("ALTER TABLE {} SET LOGGED;", name),
        )
    if table.persistence is Persistence.TEMPORARY:
        yield blocker(
            table.qualified, "is temporary: its changes are not in the wal", "leave it out"
        )


def _identity(table: TableInfo) -> Iterator[Finding]:
    if not table.has_usable_identity:
        yield blocker(
            table.qualified,
            f"{_missing_identity(table)}: if it were published, the application's own UPDATE and "
            "DELETE would fail",
            shown(_identity_fix(table), qualified(table.schema, table.name)),
        )
    elif not table.key and not table.identity_columns:
        yield warning(
            table.qualified,
            "has no key, only replica identity full: rows that are equal cannot be told apart",
            shown("ALTER TABLE {} ADD PRIMARY KEY (…);", qualified(table.schema, table.name)),
        )


def _missing_identity(table: TableInfo) -> str:
    match table.identity:
        case ReplicaIdentity.NOTHING:
            return "has replica identity nothing"
        case ReplicaIdentity.INDEX:
            return "has a replica identity index that is gone or not valid"
    return "has a deferrable primary key only" if table.key else "has no primary key"


def _identity_fix(table: TableInfo) -> str:
    if not table.key:
        return "ALTER TABLE {} ADD PRIMARY KEY (…);"
    if table.identity is ReplicaIdentity.DEFAULT:  # and still of no use: it is deferrable
        return "ALTER TABLE {} REPLICA IDENTITY FULL;"
    return "ALTER TABLE {} REPLICA IDENTITY DEFAULT;"


def _columns(table: TableInfo) -> Iterator[Finding]:
    folded = Counter(column.lower() for column in table.columns)
    if alike := sorted(column for column in table.columns if folded[column.lower()] > 1):
        yield blocker(
            table.qualified,
            f"has columns that are equal but for case: {', '.join(alike)}",
            "rename one of them",
        )
    if taken := [column for column in table.columns if column.lower() in META_COLUMNS]:
        yield blocker(
            table.qualified,
            f"has columns named like ours: {', '.join(taken)}",
            "rename them",
        )


def _generated(table: TableInfo, version_num: int) -> Iterator[Finding]:
    if not table.generated:
        return
    listed = ", ".join(table.generated)
    if {*table.key, *table.identity_columns} & set(table.generated):
        yield blocker(
            table.qualified,
            f"has generated columns in its key, and these are not captured: {listed}",
            "choose a key of plain columns",
        )
    elif table.identity is ReplicaIdentity.FULL:
        severe = version_num >= _GENERATED_REFUSED_VERSION
        yield (blocker if severe else warning)(
            table.qualified,
            f"has generated columns ({listed}) in its replica identity: from postgres 18 on, the "
            "application's own UPDATE and DELETE fail if it is published",
            shown("ALTER TABLE {} REPLICA IDENTITY DEFAULT;", qualified(table.schema, table.name)),
        )
    else:
        yield info(table.qualified, f"has generated columns, which are not captured: {listed}")


def _rights(table: TableInfo, role: str) -> Iterator[Finding]:
    if not table.is_owned:
        grant = shown("GRANT {} TO {};", identifier(table.owner), identifier(role))
        name = qualified(table.schema, table.name)
        alter = shown("ALTER TABLE {} OWNER TO {};", name, identifier(role))
        yield blocker(
            table.qualified,
            f"belongs to {table.owner}: only its owner may publish it",
            f"{grant} or {alter}",
        )
    elif not table.is_readable:
        names = (identifier(table.schema), identifier(role))
        yield blocker(
            table.qualified,
            f"cannot be read by {role}",
            shown("GRANT USAGE ON SCHEMA {} TO {};", *names),
        )


def _leaves(conn: Connection, table: TableInfo) -> Iterator[Finding]:
    """Postgres looks at the partition's own identity when the application updates it."""
    for leaf in read_leaves(conn, table):
        if not leaf.has_usable_identity:
            yield blocker(
                table.qualified,
                f"partition {leaf.qualified} {_missing_identity(leaf)}: if the table were "
                "published, the application's own UPDATE and DELETE would fail",
                shown(_identity_fix(leaf), qualified(leaf.schema, leaf.name)),
            )


def _rows(conn: Connection, table: TableInfo) -> Iterator[Finding]:
    """Whether the rows can be read at all: a base is made of them."""
    try:
        holds_rows(conn, table)
    except psycopg.errors.InsufficientPrivilege:
        yield blocker(
            table.qualified,
            f"row-level security hides rows from {conn.info.user}",
            shown("ALTER ROLE {} BYPASSRLS;", identifier(conn.info.user)),
        )
    except psycopg.errors.LockNotAvailable:
        yield warning(table.qualified, "is locked by another session: its rows were not looked at")
    except psycopg.Error as exc:
        raise source_error(exc) from exc
