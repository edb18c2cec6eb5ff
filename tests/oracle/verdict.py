"""The verdict: what the source holds, asked by SQL, is what the other side holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
from psycopg import sql

from tailrace.log.verify import verify
from tailrace.storage import Store
from tests.capture.oracle import Values
from tests.oracle.folded import fold
from tests.oracle.tables import Table

Rows: TypeAlias = Mapping[tuple[str | None, ...], Values]

SHOWN = 3


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source: its oid, and its rows by key, all values as text."""

    oid: int
    rows: Rows


def source_table(connection: psycopg.Connection, table: Table) -> SourceTable:
    """As of now."""
    cursor = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table.identifier))
    names = [column.name for column in cursor.description or ()]
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(each)) for each in names)
    query = sql.SQL("SELECT {} FROM {}").format(texts, table.identifier)
    found = [dict(zip(names, row, strict=True)) for row in connection.execute(query)]
    rows = {tuple(row[name] for name in table.key): row for row in found}
    assert len(rows) == len(found)
    oid = connection.execute(
        "SELECT format('%%I.%%I', 'work', %s::text)::regclass::oid::bigint", [table.name]
    ).fetchone()
    assert oid is not None
    return SourceTable(oid[0], rows)


def differences(source: Rows, other: Rows) -> list[str]:
    """The first few rows in which they differ, in words."""
    found = []
    for key in sorted(source.keys() | other.keys(), key=str):
        if source.get(key) != other.get(key):
            found.append(f"{key}: source {source.get(key)}, other {other.get(key)}"[:600])
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return found[:SHOWN] + more


def assert_log_is_source(
    store: Store, connection: psycopg.Connection, tables: Iterable[Table]
) -> dict[str, int]:
    """The log is sound, and folded it is the source. Gives the rows of each table compared; one
    that waits for a base is none of them.
    """
    *_, verification = verify(store)
    assert verification.problems == []
    folded = fold(store)
    compared = {}
    for table in tables:
        source = source_table(connection, table)
        if source.oid in folded:
            assert differences(source.rows, folded[source.oid].rows) == [], table.name
            compared[table.name] = len(source.rows)
    return compared
