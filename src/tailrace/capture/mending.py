"""Undoes what somebody else did to a publication of ours.

A table that was taken out, or added with a row filter or a list of columns, is not streamed whole,
and Postgres does not report it. It is taken out, then taken up like any other: from a new base. The
others flow. A publication that was dropped cannot be mended: its slot cannot decode without it.
"""

from __future__ import annotations

import logging

import psycopg

from tailrace.capture.removal import LOCK_TIMEOUT_MS
from tailrace.capture.roll import Roll, record_as_planned, settle
from tailrace.errors import SourceError, SourceGap
from tailrace.failpoint import failpoint
from tailrace.postgres.restore_publication import restore_publication
from tailrace.postgres.session import Connection, source_error
from tailrace.storage import Store

logger = logging.getLogger(__name__)


def mend(conn: Connection, store: Store, roll: Roll) -> None:
    """Before tables are taken up. Raises SourceGap if it cannot be done, and SourceError if not at
    this moment.
    """
    found = settle(conn, store, roll)
    if found is None:
        return
    changed = f"publication {roll.publication} was changed by hand: {found.what}"

    def before_commit() -> None:
        record_as_planned(conn, store, roll)
        failpoint("mending.before_commit")

    try:
        restore_publication(
            conn,
            roll.publication,
            found.doubtful,
            inserts_only=roll.inserts_only,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
            before_commit=before_commit,
        )
    except psycopg.Error as error:
        reason = source_error(error)
        # Another leader has put it right before us, or a table is locked or was just dropped.
        is_passing = reason.retry or isinstance(error, psycopg.errors.UndefinedObject)
        kind = SourceError if is_passing else SourceGap
        hint = "run `tailrace check`: it shows what to set right"
        raise kind(f"{changed}, and stays so: {reason}", hint=hint, retry=is_passing) from error
    settle(conn, store, roll)
    logger.warning("%s; it is set right, and its tables begin again", changed)
