"""The tables that are asked for and not captured, with the reason."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One of them; `fix` is SQL or a command, empty if it will be taken up by itself."""

    table: str
    reason: str
    fix: str = ""


def left_out(
    conn: Connection, selection: Selection, published: Container[int]
) -> tuple[LeftOut, ...]:
    """Compare what is asked for with the oids of what is published; raises psycopg.Error,
    SourceError.
    """
    asked = tables_matching(conn, selection.patterns) if selection.patterns else []
    return tuple(_reason(conn, table, selection) for table in asked if table.oid not in published)


def _reason(conn: Connection, table: TableInfo, selection: Selection) -> LeftOut:
    inserts_only = selection.is_inserts_only(table)
    for finding in table_findings(conn, table, inserts_only=inserts_only):
        if finding.severity is Severity.BLOCKER:
            return LeftOut(table.qualified, finding.message, finding.fix)
    return LeftOut(table.qualified, "is not taken up yet")
