"""The tables that are asked for and not captured, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.publication import Fingerprint
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One of them; `fix` is SQL or a command, empty if it will be taken up by itself."""

    table: str
    reason: str
    fix: str = ""


def left_out(
    conn: Connection, patterns: Sequence[str], published: Fingerprint | None
) -> tuple[LeftOut, ...]:
    """Compare what the patterns match with what is published; raises psycopg.Error, SourceError."""
    members = {member.relation_oid for member in published.members} if published else set()
    asked = tables_matching(conn, patterns) if patterns else []
    return tuple(_reason(conn, table) for table in asked if table.oid not in members)


def _reason(conn: Connection, table: TableInfo) -> LeftOut:
    for finding in table_findings(conn, table):
        if finding.severity is Severity.BLOCKER:
            return LeftOut(table.qualified, finding.message, finding.fix)
    return LeftOut(table.qualified, "is not taken up yet")
