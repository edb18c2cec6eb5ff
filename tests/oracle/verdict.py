"""The verdict: what the source holds, asked by SQL, is what the other side holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import psycopg
from deltalake.exceptions import TableNotFoundError
from psycopg import sql

from tailrace.log.verify import verify
from tailrace.storage import Store
from tests.capture.oracle import Values
from tests.oracle.folded import fold
from tests.oracle.lake import lake_rows, tables_of
from tests.oracle.tables import Table

Rows: TypeAlias = Mapping[tuple[str | None, ...], Values]

SHOWN: Final = 3
"""Rows of a table."""
PROBLEMS_SHOWN: Final = 12
"""So that what is said below them is not cut off."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source: its oid, and its rows by key, all values as text."""

    oid: int
    columns: list[str]
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
    return SourceTable(oid[0], names, rows)


def differences(source: Rows, other: Rows) -> list[str]:
    """The first few rows in which they differ, in words."""
    keys = source.keys() | other.keys()
    unlike = sorted((key for key in keys if source.get(key) != other.get(key)), key=str)
    found = [f"{key}: {_unlike(source.get(key), other.get(key))}" for key in unlike[:SHOWN]]
    return [*found, f"and {len(unlike) - SHOWN} more"] if len(unlike) > SHOWN else found


def _unlike(source: Values | None, other: Values | None) -> str:
    if source is None:
        return f"only there: {str(other)[:200]}"
    if other is None:
        return f"missing: {str(source)[:200]}"
    names = sorted(name for name in source.keys() | other.keys() if _at(source, name, other))
    stamp = f"writer {source.get('writer')} seq {source.get('seq')}"
    return f"{stamp}: " + ", ".join(_at(source, name, other) for name in names)


def _at(source: Values, name: str, other: Values) -> str:
    """How one column differs; empty if it does not."""
    ours, theirs = (side.get(name, "(nothing)") for side in (source, other))
    return "" if ours == theirs else f"{name} {str(ours)[:40]!r} is {str(theirs)[:40]!r} there"


def log_problems(
    store: Store, connection: psycopg.Connection, tables: Iterable[Table]
) -> list[str]:
    """How the log, folded, differs from the source, in words. A table that waits for a base does;
    so does a log that is not sound, or whose changes do not fit each other.
    """
    *_, verification = verify(store)
    problems = [str(problem) for problem in verification.problems]
    try:
        folded = fold(store)
    except AssertionError as error:
        return [*problems, str(error)]
    for table in tables:
        source = source_table(connection, table)
        if source.oid not in folded:
            problems.append(f"{table.name} waits for a base")
        else:
            # By the key that the table had at first: it may have another one now.
            rows = folded[source.oid].rows.values()
            found = differences(
                source.rows, {tuple(row[n] for n in table.key): row for row in rows}
            )
            problems += [f"log {table.name} {difference}" for difference in found]
    return problems


def settle(problems: Callable[[], list[str]], *, patience_s: float, pause_s: float = 3.0) -> None:
    """The source is at rest: look again and again until there is nothing to complain about."""
    deadline = time.monotonic() + patience_s
    while found := problems():
        shown = [*found[:PROBLEMS_SHOWN], f"{len(found)} lines in all"]
        assert time.monotonic() < deadline, "\n".join(shown)
        time.sleep(pause_s)


def lake_problems(
    lakes: Mapping[str, Path], connection: psycopg.Connection, tables: Iterable[Table]
) -> list[str]:
    """How the lakes, one for each mode, differ from the source, in words."""
    problems = []
    for table in tables:
        source = source_table(connection, table)
        for mode, lake in lakes.items():
            if not tables_of(mode, [table]):
                continue
            try:
                found = lake_rows(lake, table, mode, source.columns)
            except (TableNotFoundError, KeyError) as error:
                problems.append(f"{mode} {table.name}: {error!r}")
                continue
            for difference in differences(source.rows, found):
                problems.append(f"{mode} {table.name} {difference}")
    return problems
