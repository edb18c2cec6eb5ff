"""Can this table be captured, without harm to the application that writes it?

Publishing a table whose rows Postgres cannot identify makes the application's own UPDATE and DELETE
fail, so such a table is never published. A finding concerns its table only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import psycopg

from tailrace.model import META_COLUMNS
from tailrace.postgres.add_table import holds_rows
from tailrace.postgres.catalog import Kind, Persistence, TableInfo, read_leaves
from tailrace.postgres.check_identity import (
    identity_findings,
    leaf_identity_findings,
    leaf_storage_findings,
)
from tailrace.postgres.check_names import name_findings
from tailrace.postgres.finding import Finding, Severity, blocker, info, warning
from tailrace.postgres.quote import identifier, qualified, shown
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error

_KIND_NAMES: Final = {
    Kind.FOREIGN: "a foreign table: its rows are not in this server's wal",
    Kind.VIEW: "a view: it has no rows of its own",
    Kind.MATERIALIZED_VIEW: "a materialised view: its rows are not replicated",
}


def table_findings(
    conn: Connection, table: TableInfo, *, inserts_only: bool = False, is_published: bool = False
) -> list[Finding]:
    """Everything about one table; one that is published already has been read."""
    if not table.is_table:
        return [_not_a_table(table)]
    findings = shape_findings(conn, table, inserts_only=inserts_only)
    findings += _rights(table, conn.info.user)
    if table.children:
        children = ", ".join(table.children)
        findings.append(
            info(table.qualified, f"has children by inheritance, tables of their own: {children}")
        )
    is_blocked = any(finding.severity is Severity.BLOCKER for finding in findings)
    if not (is_published or is_blocked):
        findings += [*_rows(conn, table), *_unreadable_leaves(conn, table)]
    return findings


def shape_findings(
    conn: Connection, table: TableInfo, *, inserts_only: bool = False
) -> list[Finding]:
    """What can come true of a table at any time by DDL, and then keeps it from being published. If
    only its inserts are, nothing needs to identify its rows.
    """
    if not table.is_table:
        return [_not_a_table(table)]
    version_num = conn.info.server_version
    findings = [*_storage(table), *_columns(table), *name_findings(conn, table)]
    leaves = read_leaves(conn, table) if table.kind is Kind.PARTITIONED else []
    for leaf in leaves:
        findings += leaf_storage_findings(table, leaf)
    if inserts_only:
        message = "has no key: only its inserts are captured, for streams that append"
        return [*findings, info(table.qualified, message)]
    findings += identity_findings(table, version_num)
    for leaf in leaves:
        findings += leaf_identity_findings(table, leaf, version_num)
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


def _columns(table: TableInfo) -> Iterator[Finding]:
    folded = Counter(column.lower() for column in table.columns)
    if alike := sorted(column for column in table.columns if folded[column.lower()] > 1):
        yield blocker(
            table.qualified,
            f"has columns that are equal but for case: {', '.join(alike)}",
            _renaming(table, alike[:1]),
        )
    if taken := [column for column in table.columns if column.lower() in META_COLUMNS]:
        yield blocker(
            table.qualified,
            f"has columns named like ours: {', '.join(taken)}",
            _renaming(table, taken),
        )


def _renaming(table: TableInfo, columns: list[str]) -> str:
    """To the column's name with as many underscores behind it as make it new."""
    known = {column.lower() for column in table.columns} | set(META_COLUMNS)
    parts = []
    for column in columns:
        free = column
        while free.lower() in known:
            free += "_"
        known.add(free.lower())
        names = (qualified(table.schema, table.name), identifier(column), identifier(free))
        parts.append(shown("ALTER TABLE {} RENAME COLUMN {} TO {};", *names))
    return " ".join(parts)


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
        yield blocker(table.qualified, f"cannot be read by {role}", _grants(table, role))


def _unreadable_leaves(conn: Connection, table: TableInfo) -> Iterator[Finding]:
    """A base is read partition by partition, for which the right to read the root does not do."""
    role = conn.info.user
    for leaf in read_leaves(conn, table) if table.kind is Kind.PARTITIONED else ():
        if not leaf.is_readable:
            message = f"partition {leaf.qualified} cannot be read by {role}"
            yield blocker(table.qualified, message, _grants(leaf, role))


def _grants(table: TableInfo, role: str) -> str:
    parts = []
    if not table.is_in_reach:
        names = (identifier(table.schema), identifier(role))
        parts.append(shown("GRANT USAGE ON SCHEMA {} TO {};", *names))
    if not table.is_selectable:
        names = (qualified(table.schema, table.name), identifier(role))
        parts.append(shown("GRANT SELECT ON {} TO {};", *names))
    return " ".join(parts)


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
