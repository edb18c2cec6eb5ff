"""Which tables are published, kept beside the log and compared with the catalog.

A publication that someone changes by hand leaves a gap that Postgres does not report. Each change
of ours is recorded before it is committed; so the catalog must always look like the newest record,
or, if we died between record and commit, like the one before it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.errors import SchemaError, SegmentCorrupt, SourceError, SourceGap
from tailrace.log import layout
from tailrace.postgres.catalog import TableInfo, read_tables, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.publication import Fingerprint, add_table, fingerprint
from tailrace.postgres.session import Connection
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 200
"""How long a table's writers may be made to wait for the lock that adds it; below
deadlock_timeout.
"""


def record_membership(store: Store, planned: Fingerprint) -> None:
    """Keep what the publication is going to look like."""
    entries = store.list(layout.PUBLICATION)
    number = int(entries[-1].key.rsplit("/", 1)[-1].split(".")[0]) + 1 if entries else 0
    store.put_new(layout.publication_key(number), json.dumps(planned.to_dict()).encode())
    store.delete(entry.key for entry in entries[:-1])


def check_membership(conn: Connection, store: Store, publication: str) -> None:
    """Raise SourceGap if the publication was changed by anyone but us."""
    found = fingerprint(conn, publication)
    if found is None:
        raise SourceGap(f"publication {publication} was dropped", hint=_HINT)
    # Read after the catalog: a record is written before the change that it announces.
    problems = [_difference(conn, record, found) for record in _newest_records(store)]
    if all(problems):
        raise SourceGap(f"publication {publication} was changed by hand: {problems[0]}", hint=_HINT)


_HINT: Final = (
    "changes made meanwhile are not in the stream: run `tailrace teardown` and begin a new log"
)


def _newest_records(store: Store) -> list[Fingerprint]:
    keys = [entry.key for entry in store.list(layout.PUBLICATION)][-2:]
    try:
        return [Fingerprint.from_dict(json.loads(store.get(key))) for key in reversed(keys)]
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{keys[-1]} cannot be read") from error


def _difference(conn: Connection, record: Fingerprint, found: Fingerprint) -> str:
    """What differs, or nothing. A table that was dropped has left every publication rightly."""
    if (record.oid, record.xmin) != (found.oid, found.xmin):
        return "it was altered or made again"
    missing = [member for member in record.members if member not in found.members]
    living = {table.oid for table in read_tables(conn, [m.relation_oid for m in missing])}
    for member in missing:
        if member.relation_oid in living:
            return f"{member.table} was taken out"
    for member in found.members:
        if member not in record.members:
            return f"{member.table} was added"
    return ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A table that cannot be captured, and why."""

    table: str
    message: str
    fix: str


class Membership:
    """Takes up the tables that match the patterns, each alone, while capture runs."""

    def __init__(self, conn: Connection, store: Store, publication: str) -> None:
        self._conn = conn
        self._store = store
        self._publication = publication

    def take_up(self, patterns: Sequence[str]) -> list[Refusal]:
        """Publish what can be published now; what cannot is returned and harms no other table."""
        published = fingerprint(self._conn, self._publication)
        members = {member.relation_oid for member in published.members} if published else set()
        refusals = []
        for table in tables_matching(self._conn, patterns):
            if table.oid not in members:
                refusal = self._take_up_one(table)
                if refusal is not None:
                    refusals.append(refusal)
        return refusals

    def member_count(self) -> int:
        """How many tables are published."""
        published = fingerprint(self._conn, self._publication)
        return len(published.members) if published else 0

    def _take_up_one(self, table: TableInfo) -> Refusal | None:
        for finding in table_findings(self._conn, table):
            if finding.severity is Severity.BLOCKER:
                return Refusal(table.qualified, finding.message, finding.fix)
        try:
            add_table(
                self._conn,
                self._publication,
                table,
                lock_timeout_ms=LOCK_TIMEOUT_MS,
                before_commit=lambda planned: record_membership(self._store, planned),
            )
        except (SourceError, SchemaError) as error:
            return Refusal(table.qualified, str(error), error.hint)
        logger.info("table taken up table=%s", table.qualified)
        return None


def refuse_named(patterns: Sequence[str], refusals: Sequence[Refusal]) -> None:
    """Raise SchemaError for a refused table that the configuration names outright."""
    named = {pattern for pattern in patterns if TablePattern.parse(pattern).exact}
    for refusal in refusals:
        if refusal.table in named:
            raise SchemaError(f"{refusal.table} {refusal.message}", hint=refusal.fix)
