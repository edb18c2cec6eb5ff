"""Preflight: everything that keeps a source or a table from being captured, found before it does.

Each table is judged alone: one that cannot be taken never keeps out the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import psycopg

from tailrace.errors import ConfigError
from tailrace.postgres.catalog import TableInfo, read_tables, relation_names, schema_names
from tailrace.postgres.check_publication import publication_findings, slot_findings
from tailrace.postgres.check_server import by_triggers, server_findings
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Finding, Severity, blocker, warning
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.publication import published_tables
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import read_server
from tailrace.postgres.session import APPLICATION_NAME, Connection
from tailrace.postgres.slot import read_slot
from tailrace.postgres.sqlstate import source_error

__all__ = ["Finding", "Severity", "check", "is_blocked", "require_tables", "table_findings"]

logger = logging.getLogger(__name__)


def check(
    conn: Connection,
    *,
    names: SourceNames,
    selection: Selection,
    application_name: str = APPLICATION_NAME,
    may_use_triggers: Callable[[TableInfo], bool] = lambda _: False,
    is_wal_optional: bool = False,
) -> list[Finding]:
    """All findings: server first, then slot and publication, then patterns and tables by name.
    `may_use_triggers` tells for which tables they may stand in for the WAL.

    Changes nothing. Raises ConfigError for a pattern that cannot be read, SourceError if the
    server cannot be asked.
    """
    parsed = [TablePattern.parse(text) for text in selection.patterns]
    try:
        server = read_server(conn, slot=names.slot)
        slot = read_slot(conn, names.slot)
        is_in_use = slot is not None and not slot.is_lost
        found = [
            *server_findings(
                server, application_name=application_name, is_wal_optional=is_wal_optional
            ),
            *slot_findings(slot, server),
            *publication_findings(conn, names.publication, server, is_in_use=is_in_use),
            *publication_findings(
                conn, names.inserts, server, inserts_only=True, is_in_use=is_in_use
            ),
            *_pattern_findings(conn, names, parsed, selection, may_use_triggers),
        ]
        # Two publications that cannot be made have one reason.
        return list(dict.fromkeys(found))
    except psycopg.Error as exc:
        raise source_error(exc) from exc


def require_tables(conn: Connection, patterns: Sequence[str]) -> None:
    """Raise ConfigError if a name without wildcards is nobody's, or a schema does not exist. Says
    which patterns mean no table yet: capture would wait for one without a word.
    """
    try:
        relations, schemas = relation_names(conn), schema_names(conn)
    except psycopg.Error as exc:
        raise source_error(exc) from exc
    for pattern in map(TablePattern.parse, patterns):
        if any(pattern.matches(*names) for _, *names in relations):
            continue
        finding = _no_match(pattern, relations, schemas)
        if finding.severity is Severity.BLOCKER:
            raise ConfigError(f"{finding.subject} {finding.message}", hint=finding.fix)
        logger.info("no table yet, waiting for one pattern=%s", pattern.text)


def is_blocked(findings: Sequence[Finding]) -> bool:
    """True if any of them is a blocker."""
    return any(finding.severity is Severity.BLOCKER for finding in findings)


def _pattern_findings(
    conn: Connection,
    names: SourceNames,
    patterns: Sequence[TablePattern],
    selection: Selection,
    may_use_triggers: Callable[[TableInfo], bool],
) -> list[Finding]:
    relations = relation_names(conn)
    asked: dict[int, TableInfo] = {}
    findings = []
    for pattern in patterns:
        oids = [oid for oid, schema, name in relations if pattern.matches(schema, name)]
        # What a wildcard happens to cover need not be a table; what is named must be.
        matched = [table for table in read_tables(conn, oids) if pattern.exact or table.is_table]
        asked |= {table.oid: table for table in matched}
        if not matched:
            findings.append(_no_match(pattern, relations, schema_names(conn)))
    members = {member.relation_oid for member in published_tables(conn, names)}
    for table in sorted(asked.values(), key=lambda table: (table.schema, table.name)):
        is_published = table.oid in members
        found = table_findings(
            conn,
            table,
            inserts_only=selection.is_inserts_only(table),
            is_published=is_published,
        )
        if is_blocked(found) and may_use_triggers(table):
            # What identifies a row matters to the WAL alone.
            least = table_findings(conn, table, inserts_only=True, is_published=is_published)
            found = found if is_blocked(least) else by_triggers(found)
        findings += found
    return findings


def _no_match(
    pattern: TablePattern, relations: Sequence[tuple[int, str, str]], schemas: Sequence[str]
) -> Finding:
    if not pattern.exact and pattern.schema_name not in (None, *schemas):
        # Most likely a slip, and with it every table that was captured so far would be let go.
        nearest = get_close_matches(pattern.schema_name or "", schemas, n=1)
        fix = f"did you mean schema {nearest[0]}?" if nearest else "correct it, or make the schema"
        return blocker(pattern.text, f"matches no table: no schema {pattern.schema_name}", fix)
    if not pattern.exact:
        fix = "make a table, which is taken up by itself; or correct capture.tables"
        return warning(pattern.text, "matches no table yet", fix)
    known = [f"{schema}.{name}" for _, schema, name in relations]
    nearest = get_close_matches(pattern.text, known, n=1)
    fix = f"did you mean {nearest[0]}?" if nearest else "correct capture.tables, or make the table"
    return blocker(pattern.text, "matches no table", fix)
