"""A slot begins where the drains end.

Making the slot exports a snapshot that shows exactly what ends at or before the slot's position P.
What it shows of the buffers and the log does not have is appended at P; what it does not show the
slot will stream. A segment is appended even if there is nothing: it ends the time of drains. Until
then the slot counts for nothing, and whoever finds it beside a log that is drained drops it: but
only the one who leads, and none that is streamed, since whoever drains streams from no slot.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Final

import psycopg

from tailrace.capture.drains.drain import Drainer
from tailrace.control.schema import CHANGES
from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.log import Header
from tailrace.postgres.blockers import listed, writers
from tailrace.postgres.leading import must_lead
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.slot import drop_slot
from tailrace.postgres.slot_proof import can_decode, have_ended, open_until
from tailrace.postgres.snapshot import Patience, SnapshotHolder

logger = logging.getLogger(__name__)

HOLDER_NAME: Final = "tailrace slot"
_PROOF_INTERVAL_S: Final = 0.1


def begin_slot(
    dsn: str, drainer: Drainer, names: SourceNames, patience: Patience, *, leader_pid: int
) -> Header:
    """Make the slot and append the last drain. The publications are there already.

    Raises SourceError(retry=True) if transactions are in the way for longer than `patience`; then
    there is no slot, and draining may go on. Raises NotLeading if the backend `leader_pid` does not
    lead: a slot that is there is another's.
    """
    try:
        with connect(dsn) as conn:
            _drop_left_over(conn, names, leader_pid)
            try:
                return _begin(dsn, conn, drainer, names, patience)
            except BaseException:
                with suppress(SourceError, psycopg.Error):
                    _drop_left_over(conn, names, leader_pid)
                raise
    except psycopg.Error as error:
        raise source_error(error) from error


def _drop_left_over(conn: Connection, names: SourceNames, leader_pid: int) -> None:
    must_lead(conn, names.slot, leader_pid)
    drop_slot(conn, names.slot, ends_sender=False)


def _begin(
    dsn: str, conn: Connection, drainer: Drainer, names: SourceNames, patience: Patience
) -> Header:
    deadline = time.monotonic() + patience.all_s
    shapes = _buffer_shapes(conn)
    with SnapshotHolder(dsn, application_name=HOLDER_NAME, slot=names.slot) as holder:
        snapshot = holder.hold(patience)
        failpoint("slot.after_made")
        until = open_until(conn, names.publication)
        if _buffer_shapes(conn) != shapes:
            # What began before it was committed may be decoded in the shape before, without a word.
            raise SourceError("a table was altered while the slot was made", retry=True)
        _prove(conn, names, until, patience, deadline)
        failpoint("slot.before_begun")
        header = drainer.end_at(holder.session, snapshot, patience.go_on)
    failpoint("slot.after_begun")
    logger.info("slot begun slot=%s start=%s", names.slot, header.end)
    return header


# Other than tables, buffers are published before the slot is made.
_SHAPES: Final = """
SELECT a.attrelid::bigint, a.attnum, a.xmin::text
  FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
 WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND a.attnum > 0
 ORDER BY 1, 2
"""


def _buffer_shapes(conn: Connection) -> list[tuple[object, ...]]:
    """Equal if no buffer was altered in between."""
    return conn.execute(_SHAPES, (CHANGES,)).fetchall()


def _prove(
    conn: Connection, names: SourceNames, until: int, patience: Patience, deadline: float
) -> None:
    """Wait for the transactions that were open when the slot was made, then try it."""
    while not have_ended(conn, until):
        patience.go_on()
        if time.monotonic() >= deadline:
            raise SourceError(
                f"a slot waits for open transactions: {listed(writers(conn))}", retry=True
            )
        time.sleep(_PROOF_INTERVAL_S)
    if not can_decode(conn, names.slot, names.publication):
        raise SourceError("the slot cannot decode what was open while it was made", retry=True)
