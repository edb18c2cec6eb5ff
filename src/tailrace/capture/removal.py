"""Takes tables out of the publication that must not, or need not, be in it any more.

A table can turn bad while it is published: without its key the application's own UPDATE fails until
we let go of it. It is set aside, and the others flow. Once it is good again it is taken up like any
other, and starts again from a new base.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tailrace.capture.roll import Roll, published, record_membership, settle
from tailrace.errors import NotLeading, SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.catalog import TableInfo, read_tables
from tailrace.postgres.check_table import shape_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.publication import Fingerprint
from tailrace.postgres.remove_table import remove_table
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection
from tailrace.storage import Store

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 200
"""How long others may be made to wait behind our wait for the table's lock."""


def take_out(
    conn: Connection,
    store: Store,
    roll: Roll,
    selection: Selection,
    *,
    should_go_on: Callable[[], bool],
) -> None:
    """Take out what no pattern means any more, and what may not be published as it is now. What
    cannot be taken out at this moment is tried again at the next turn.
    """
    members = published(conn, roll).members
    for table in read_tables(conn, [member.relation_oid for member in members]):
        if not should_go_on():
            return
        reason = why_out(conn, table, roll, selection)
        if reason:
            take_out_one(conn, store, roll, table, reason)


def why_out(conn: Connection, table: TableInfo, roll: Roll, selection: Selection) -> str:
    """Why a table must not, or need not, be published as it is; empty if it may."""
    if not selection.means(table):
        return "no pattern of capture.tables means it"
    if roll.inserts_only and not selection.is_inserts_only(table):
        return "more than its inserts can be captured now"
    for finding in shape_findings(conn, table, inserts_only=roll.inserts_only):
        if finding.severity is Severity.BLOCKER:
            return finding.message
    return ""


def take_out_one(
    conn: Connection,
    store: Store,
    roll: Roll,
    table: TableInfo,
    reason: str,
    *,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Stop publishing a table, and tell whether that came about: what cannot be done at this moment
    is said, and no error. `check` is called while it is locked.
    """

    def before_commit(planned: Fingerprint) -> None:
        check()
        record_membership(store, roll, planned)
        failpoint("removal.before_commit")

    try:
        remove_table(
            conn,
            roll.publication,
            table,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
            before_commit=before_commit,
        )
    except NotLeading:
        raise
    except SourceError as error:
        logger.warning("table stays published for now reason=%s", error)
        return False
    settle(conn, store, roll)
    logger.warning("table set aside table=%s reason=%s", table.qualified, reason)
    return True
