"""By which means a table is to be captured, as things stand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.capture.membership import Refusal, refuse
from tailrace.capture.modes import CaptureMode, HybridSettings, TableRules
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Finding, Severity
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection


class Means(StrEnum):
    """What captures a table."""

    WAL = "wal"
    TRIGGER = "trigger"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The means that fit best; if there are none, what is in the way and how to cure it.
    `waits_for_slot` if that is nothing but the want of a slot.
    """

    means: Means
    blocker: Finding | None = None
    waits_for_slot: bool = False


def wanted_means(
    conn: Connection,
    table: TableInfo,
    rules: TableRules,
    selection: Selection,
    *,
    has_slot: bool,
    is_captured: bool,
    by_trigger: bool = False,
) -> Wanted:
    """What the settings, the server and the table's replica identity come to.

    A table that the WAL could not give is not captured in mode `auto`: it would be delivered
    without what tells its rows apart. Mode `trigger` takes it, for streams that append. One that
    triggers capture already keeps them until it is handed over, in mode `wal` too: to drop them
    would leave a gap.
    """
    if rules.mode is CaptureMode.TRIGGER:
        # Triggers record whole rows, old and new: they need no replica identity.
        blocker = _blocker(conn, table, inserts_only=True, is_captured=is_captured)
        return Wanted(Means.NOTHING, blocker) if blocker else Wanted(Means.TRIGGER)
    inserts_only = selection.is_inserts_only(table)
    blocker = _blocker(conn, table, inserts_only=inserts_only, is_captured=is_captured)
    if blocker is not None:
        return Wanted(Means.NOTHING, blocker)
    if has_slot:
        return Wanted(Means.WAL)
    if rules.mode is CaptureMode.WAL and not by_trigger:
        return Wanted(Means.NOTHING, _no_slot(table), waits_for_slot=True)
    return Wanted(Means.TRIGGER)


def foresee_refusals(conn: Connection, selection: Selection, hybrid: HybridSettings) -> None:
    """Raise SchemaError for what would be refused anyway, while nothing has been made for it yet.
    A table that may be altered so that it fits is not judged.
    """
    tables = tables_matching(conn, selection.patterns)
    refusals = []
    for table in tables:
        rules = hybrid.of(table)
        if not rules.auto_replica_identity:
            wanted = wanted_means(conn, table, rules, selection, has_slot=True, is_captured=False)
            if wanted.blocker is not None:
                refusals.append(Refusal(table, wanted.blocker.message, wanted.blocker.fix))
    refuse(selection.patterns, refusals, member_count=len(tables) - len(refusals))


def _blocker(
    conn: Connection, table: TableInfo, *, inserts_only: bool, is_captured: bool
) -> Finding | None:
    findings = table_findings(conn, table, inserts_only=inserts_only, is_published=is_captured)
    return next((each for each in findings if each.severity is Severity.BLOCKER), None)


def _no_slot(table: TableInfo) -> Finding:
    return Finding(
        Severity.BLOCKER,
        table.qualified,
        "is to come from the wal, which cannot be had from this server as it is",
        "run `tailrace check`; or set its mode to auto",
    )
