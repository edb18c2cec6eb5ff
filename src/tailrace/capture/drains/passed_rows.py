"""Rows of buffers that the durable log has: found by a snapshot, deleted in bounded batches.

What a snapshot shows was committed before it. So if the log has passed a position that was taken
after the snapshot, it has every row that the snapshot shows.

Buffers have no index: it would cost every writer more than anything else here, and nearly all rows
of a buffer are wanted whenever it is read. So a buffer is gone through page by page, each page
once, and is vacuumed as soon as much of it is dead: it stays as small as what waits in it.

What cannot be deleted yet does no harm but to the disk: what the log has is known without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import psycopg
from psycopg import sql

from tailrace.control.tracking import tracked_elsewhere
from tailrace.postgres.buffer import buffer, read_buffers
from tailrace.postgres.buffer_identity import make_deletable
from tailrace.postgres.quote import statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error

logger = logging.getLogger(__name__)

BATCH_PAGES: Final = 128
"""So many pages are gone through by one DELETE: 1 MiB, some ten thousand rows."""

DEAD_ROWS_MIN: Final = 20_000
DEAD_ROWS_PER_PAGE: Final = 8
"""A buffer is vacuumed when it has so many dead rows, and so many for each of its pages: if
Postgres must keep them, because some transaction is open for long, it is seldom tried."""

REFUSED_RETRY_S: Final = 60.0
"""How often a buffer is altered that refuses to be emptied: writers wait while the lock is."""


def buffers_of(conn: Connection, source: str) -> dict[int, int]:
    """The buffers that the log of this source takes in, by table; those of tables that are gone as
    well, until they are empty. A buffer is on record as long as it is there.
    """
    foreign = tracked_elsewhere(conn, source)
    return {table: oid for table, oid in read_buffers(conn).items() if table not in foreign}


def bytes_of(conn: Connection, buffers: Iterable[int]) -> int:
    """How large these buffers are, by their own oids; what is kept out of line is not counted."""
    query = "SELECT coalesce(sum(pg_relation_size(oid)), 0)::bigint FROM unnest(%s::oid[]) AS oid"
    row = conn.execute(query, (list(buffers),)).fetchone()
    assert row is not None
    return int(row[0])


_PAGES: Final = """
SELECT pg_relation_size(oid) / current_setting('block_size')::bigint
  FROM pg_class WHERE oid = to_regclass(%s)
"""

_DELETE: Final = """
DELETE FROM {buffer} WHERE ctid >= {first}::tid AND ctid < {end}::tid
   AND pg_visible_in_snapshot(xid, {passed}::pg_snapshot)
"""


class PassedRows:
    """One leader's deletions; remembers how much of each buffer is dead, and which one refuses."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._dead_rows: dict[int, int] = {}
        self._refused: dict[int, float] = {}

    @property
    def refused(self) -> set[int]:
        """The tables from whose buffers nothing could be deleted when it was last tried."""
        return set(self._refused)

    def delete(self, conn: Connection, tables: Iterable[int], passed: str) -> Iterator[int]:
        """Delete from these buffers what the snapshot shows, batch by batch; how many each time.
        The connection commits each statement. Raises psycopg.Error.
        """
        for table in tables:
            try:
                yield from self._delete(conn, table, passed)
                self._refused.pop(table, None)
            except psycopg.errors.ObjectNotInPrerequisiteState as error:
                self._make_deletable(conn, table, error)

    def _delete(self, conn: Connection, table: int, passed: str) -> Iterator[int]:
        page_count = _page_count(conn, table)
        for first in range(0, page_count, BATCH_PAGES):
            query = sql.SQL(_DELETE).format(
                buffer=buffer(table),
                first=sql.Literal(f"({first},0)"),
                end=sql.Literal(f"({first + BATCH_PAGES},0)"),
                passed=sql.Literal(passed),
            )
            count = conn.execute(query).rowcount
            self._dead_rows[table] = self._dead_rows.get(table, 0) + count
            yield count
        self._vacuum(conn, table, page_count)

    def _make_deletable(self, conn: Connection, table: int, error: psycopg.Error) -> None:
        """Now and then, not at every turn: whoever writes the table waits as long as we do."""
        if table not in self._refused:
            reason = source_error(error)
            logger.warning("buffer cannot be emptied yet table_oid=%s reason=%s", table, reason)
        if self._clock() >= self._refused.get(table, 0.0):
            if make_deletable(conn, table):
                logger.warning("buffer got replica identity full table_oid=%s", table)
            self._refused[table] = self._clock() + REFUSED_RETRY_S

    def _vacuum(self, conn: Connection, table: int, page_count: int) -> None:
        enough = max(DEAD_ROWS_MIN, DEAD_ROWS_PER_PAGE * page_count)
        if self._dead_rows.get(table, 0) >= enough:
            # Whoever vacuums it already, or alters it, is not waited for.
            conn.execute(statement("VACUUM (SKIP_LOCKED) {}", buffer(table)))
            self._dead_rows[table] = 0


def _page_count(conn: Connection, table: int) -> int:
    """How many pages the buffer has; none if it is gone."""
    row = conn.execute(_PAGES, (buffer(table).as_string(conn),)).fetchone()
    return 0 if row is None else int(row[0])
