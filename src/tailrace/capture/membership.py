"""Takes up the tables that the configuration means, each alone, while capture runs.

A table that cannot be taken is left out with its reason, and tried again at the next turn; it never
keeps out another. One that is empty has its base at once, one with rows waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.capture.roll import Roll, published, record_membership, settle
from tailrace.capture.watch import ask_after_commit, begin_watch
from tailrace.errors import NotLeading, SchemaError, SourceError
from tailrace.failpoint import failpoint
from tailrace.log import Base, BaseOrigin, Reader
from tailrace.log.bases import put_base
from tailrace.model import Lsn
from tailrace.postgres.add_table import EmptyTable, add_table
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.publication import Fingerprint
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 200
"""How long a table's writers may be made to wait for the lock that adds it; below
deadlock_timeout.
"""


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
    """The tables of one publication."""

    def __init__(self, conn: Connection, store: Store, roll: Roll) -> None:
        self._conn = conn
        self._store = store
        self._roll = roll

    def take_up(self, selection: Selection, *, should_go_on: Callable[[], bool]) -> list[Refusal]:
        """Publish what can be published now; what cannot is returned and harms no other table.
        `should_go_on` is asked before each table.
        """
        members = set(self.member_oids())
        refusals = []
        for table in tables_matching(self._conn, selection.patterns):
            if not should_go_on():
                break
            is_ours = selection.is_inserts_only(table) is self._roll.inserts_only
            if is_ours and table.oid not in members:
                refusal = self.take_up_one(table)
                if refusal is not None:
                    refusals.append(refusal)
        return refusals

    def member_oids(self) -> list[int]:
        """The tables that are published."""
        return [member.relation_oid for member in published(self._conn, self._roll).members]

    def take_up_one(
        self, table: TableInfo, *, check: Callable[[], None] = lambda: None
    ) -> Refusal | None:
        """Publish one table; None if that came about. `check` is called while it is locked."""
        inserts_only = self._roll.inserts_only
        for finding in table_findings(self._conn, table, inserts_only=inserts_only):
            if finding.severity is Severity.BLOCKER:
                return Refusal(table, finding.message, finding.fix)

        needs_base = False

        def before_commit(planned: Fingerprint) -> None:
            nonlocal needs_base
            check()
            record_membership(self._store, self._roll, planned)
            needs_base = begin_watch(self._conn, self._store, table.oid)

        try:
            empty = add_table(
                self._conn,
                self._roll.publication,
                table,
                lock_timeout_ms=LOCK_TIMEOUT_MS,
                before_commit=before_commit,
            )
        except NotLeading:
            raise
        except (SourceError, SchemaError) as error:
            return Refusal(table, str(error), error.hint, is_passing=error.retry)
        if needs_base and empty is None:
            ask_after_commit(self._conn, self._store, table.oid)
        settle(self._conn, self._store, self._roll)
        # Only now: should the commit have failed, the table would have a base that is not true.
        if empty is not None:
            failpoint("membership.before_empty_base")
            put_empty_base(self._store, empty)
        waiting = "" if empty is not None else " waiting_for=base"
        logger.info("table taken up table=%s%s", table.qualified, waiting)
        return None


def put_empty_base(store: Store, empty: EmptyTable) -> None:
    """The base of a table that had no rows when it was taken up."""
    source = Reader(store).tip().source
    put_base(
        store,
        Base(
            source=source,
            relation=empty.shape.relation,
            frame=empty.shape.frame,
            position=Lsn.of(empty.position, era=source.era),
            taken_ts_us=empty.ts_us,
            origin=BaseOrigin.EMPTY,
        ),
    )


def refuse(patterns: Sequence[str], refusals: Sequence[Refusal], *, member_count: int) -> None:
    """Raise SchemaError if a refused table is named outright, or if no table is left."""
    exact = [each for each in map(TablePattern.parse, patterns) if each.exact]
    for refusal in refusals:
        table = refusal.table
        is_named = any(pattern.matches(table.schema, table.name) for pattern in exact)
        if not refusal.is_passing and (is_named or member_count == 0):
            raise SchemaError(str(refusal), hint=refusal.fix)
