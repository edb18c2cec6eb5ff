"""Which tables are published, kept beside the log and compared with the catalog.

A publication that someone changes by hand leaves a gap that Postgres does not report. Each change
of ours is recorded before it is committed, beside the record of what was there before; so the
catalog looks like one of the records, unless somebody else has changed it. As soon as it is seen
which one, older ones are deleted: they would excuse a table that is taken out by hand. Newer ones
excuse nothing, because a change that was never committed cannot be made again by hand with the same
oids; they may stand for a commit that is under way.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.capture.watch import begin_watch
from tailrace.errors import SchemaError, SegmentCorrupt, SourceError, SourceGap
from tailrace.failpoint import failpoint
from tailrace.log import Base, BaseOrigin, Reader, layout
from tailrace.log.bases import put_base
from tailrace.model import Lsn
from tailrace.postgres.add_table import EmptyTable, add_table
from tailrace.postgres.catalog import TableInfo, read_tables, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.publication import Fingerprint, fingerprint
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 200
"""How long a table's writers may be made to wait for the lock that adds it; below
deadlock_timeout.
"""

_UNCOMMITTED_MAX: Final = 8
"""How many records of changes that did not come about are kept."""


def record_membership(store: Store, planned: Fingerprint) -> None:
    """Keep what the publication is going to look like; the writers of a table wait for this."""
    entries = store.list(layout.PUBLICATION)
    number = int(entries[-1].key.rsplit("/", 1)[-1].split(".")[0]) + 1 if entries else 0
    store.put_new(layout.publication_key(number), json.dumps(planned.to_dict()).encode())
    failpoint("membership.after_record")


def check_membership(conn: Connection, store: Store, publication: str) -> None:
    """Raise SourceGap if the publication was changed by anyone but us."""
    found = fingerprint(conn, publication)
    if found is None:
        raise SourceGap(f"publication {publication} was dropped", hint=_HINT)
    # Read after the catalog: a record is written before the change that it announces.
    keys = [entry.key for entry in store.list(layout.PUBLICATION)]
    problems = []
    for place in range(len(keys) - 1, -1, -1):
        problems.append(_difference(conn, _read_record(store, keys[place]), found))
        if not problems[-1]:
            store.delete([*keys[:place], *keys[place + 1 : -_UNCOMMITTED_MAX]])
            return
    what = problems[0] if problems else "nothing is known about it"
    raise SourceGap(f"publication {publication} was changed by hand: {what}", hint=_HINT)


_HINT: Final = (
    "changes made meanwhile are not in the stream: run `tailrace teardown` and begin a new log"
)


def _read_record(store: Store, key: str) -> Fingerprint:
    try:
        return Fingerprint.from_dict(json.loads(store.get(key)))
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read") from error


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
    """A table that is not captured, and why; what is passing is tried again by itself."""

    table: TableInfo
    message: str
    fix: str
    is_passing: bool = False

    def __str__(self) -> str:
        return f"{self.table.qualified} {self.message}"


class Membership:
    """Takes up the tables that match the patterns, each alone, while capture runs."""

    def __init__(self, conn: Connection, store: Store, publication: str) -> None:
        self._conn = conn
        self._store = store
        self._publication = publication

    def take_up(
        self, patterns: Sequence[str], *, should_go_on: Callable[[], bool]
    ) -> list[Refusal]:
        """Publish what can be published now; what cannot is returned and harms no other table.
        `should_go_on` is asked before each table.
        """
        members = set(self.member_oids())
        refusals = []
        for table in tables_matching(self._conn, patterns):
            if not should_go_on():
                break
            if table.oid not in members:
                refusal = self._take_up_one(table)
                if refusal is not None:
                    refusals.append(refusal)
        return refusals

    def member_oids(self) -> list[int]:
        """The tables that are published."""
        return [member.relation_oid for member in self._published().members]

    def _take_up_one(self, table: TableInfo) -> Refusal | None:
        for finding in table_findings(self._conn, table):
            if finding.severity is Severity.BLOCKER:
                return Refusal(table, finding.message, finding.fix)

        def before_commit(planned: Fingerprint) -> None:
            record_membership(self._store, planned)
            begin_watch(self._conn, self._store, table.oid, since)

        since = insert_position(self._conn)
        try:
            empty = add_table(
                self._conn,
                self._publication,
                table,
                lock_timeout_ms=LOCK_TIMEOUT_MS,
                before_commit=before_commit,
            )
        except (SourceError, SchemaError) as error:
            return Refusal(table, str(error), error.hint, is_passing=error.retry)
        check_membership(self._conn, self._store, self._publication)
        # Only now: should the commit have failed, the table would have a base that is not true.
        if empty is not None:
            failpoint("membership.before_empty_base")
            self._put_empty_base(empty)
        waiting = "" if empty is not None else " waiting_for=base"
        logger.info("table taken up table=%s%s", table.qualified, waiting)
        return None

    def _put_empty_base(self, empty: EmptyTable) -> None:
        source = Reader(self._store).tip().source
        put_base(
            self._store,
            Base(
                source=source,
                relation=empty.shape.relation,
                frame=empty.shape.frame,
                position=Lsn.of(empty.position, era=source.era),
                taken_ts_us=empty.ts_us,
                origin=BaseOrigin.EMPTY,
            ),
        )

    def _published(self) -> Fingerprint:
        found = fingerprint(self._conn, self._publication)
        if found is None:
            raise SourceGap(f"publication {self._publication} was dropped", hint=_HINT)
        return found


def refuse(patterns: Sequence[str], refusals: Sequence[Refusal], *, member_count: int) -> None:
    """Raise SchemaError if a refused table is named outright, or if no table is left."""
    exact = [each for each in map(TablePattern.parse, patterns) if each.exact]
    for refusal in refusals:
        table = refusal.table
        is_named = any(pattern.matches(table.schema, table.name) for pattern in exact)
        if not refusal.is_passing and (is_named or member_count == 0):
            raise SchemaError(str(refusal), hint=refusal.fix)
