"""Compares tables with a lake that is at rest and has everything that is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.postgres.session import Connection, connect
from tailrace.sinks.place import escape
from tailrace.verify.delta import DeltaRows
from tailrace.verify.result import TableResult
from tailrace.verify.source import find_table
from tailrace.verify.table import Pair

_SETTINGS: Final = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}


def compare_at_rest(dsn: str, lake: str, tables: Sequence[str]) -> tuple[TableResult, ...]:
    """Compare each table (`schema.name`) under one snapshot of the source with its lake table."""
    with (
        connect(dsn, application_name="tailrace_verify", settings=_SETTINGS) as connection,
        connection.transaction(),
    ):
        return tuple(_compare(connection, lake, table) for table in tables)


def _compare(connection: Connection, lake: str, name: str) -> TableResult:
    table = find_table(connection, name)
    if table is None:
        return TableResult(name, 0, 0, False, problem="the source has no such table")
    uri = f"{lake.rstrip('/')}/{escape(table.schema)}/{escape(table.name)}"
    rows = DeltaRows.open(uri)
    if rows is None:
        return TableResult(name, 0, 0, False, problem=f"no lake table at {uri}")
    pair = Pair.of(connection, table, rows)
    return pair.tell(name, pair.compare())
