"""Empties the buffers while a slot is streamed: a mark is put into the stream, and what it shows is
deleted once the log has passed it.

A mark is a message that names a snapshot. It becomes the note of its segment, and so tells a later
reader of the log which rows of the buffers came before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.capture.buffers.translating import MARK
from tailrace.capture.drains.outstanding import PASSED
from tailrace.capture.drains.pace import Pace
from tailrace.capture.drains.passed_rows import PassedRows, buffers_of, bytes_of
from tailrace.failpoint import failpoint
from tailrace.model import Lsn
from tailrace.postgres.buffer import buffer
from tailrace.postgres.quote import statement
from tailrace.postgres.session import Connection

DEAD_ROW_BYTES: Final = 1024
"""A row that is deleted counts for so much of its buffer."""


@dataclass(frozen=True, slots=True)
class _Mark:
    snapshot: str
    position: Lsn


class PassedMarks:
    """The marks of one leadership. One that is under way when it ends is forgotten: the next leader
    puts another.
    """

    def __init__(self, source: str, pace: Pace | None = None) -> None:
        self._source = source
        self._pace = Pace() if pace is None else pace
        self._mark: _Mark | None = None
        self._passed_rows = PassedRows()

    def turn(self, conn: Connection, durable: Lsn, should_go_on: Callable[[], bool]) -> int:
        """Put a mark if there is anything in the buffers; or delete what the last one shows, if the
        log is durable up to it. How many rows were deleted. Nothing is done before it is due.
        """
        if not self._pace.is_due:
            return 0
        if self._mark is not None and durable.wal < self._mark.position:
            return 0
        buffers = buffers_of(conn, self._source)
        count = 0
        with self._pace.looking():
            if self._mark is not None:
                count = self._delete(conn, buffers, self._mark, should_go_on)
            elif _has_rows(conn, buffers):
                self._mark = put_mark(conn)
        passed_bytes = bytes_of(conn, buffers.values())
        self._pace.rest(wanted_bytes=count * DEAD_ROW_BYTES, passed_bytes=passed_bytes)
        return count

    def _delete(
        self,
        conn: Connection,
        buffers: Iterable[int],
        mark: _Mark,
        should_go_on: Callable[[], bool],
    ) -> int:
        failpoint("mark.before_delete")
        count = 0
        for deleted in self._passed_rows.delete(conn, buffers, mark.snapshot):
            count += deleted
            if not should_go_on():
                return count
        self._mark = None
        return count


def _has_rows(conn: Connection, tables: Iterable[int]) -> bool:
    return any(
        conn.execute(statement("SELECT EXISTS (SELECT FROM {})", buffer(table))).fetchone()
        == (True,)
        for table in tables
    )


def put_mark(conn: Connection) -> _Mark:
    """In this order: a position, then an id that is given after it, then a snapshot, then the
    message after all of them.
    """
    with conn.transaction():
        since = _text(conn, "SELECT pg_current_wal_insert_lsn()::text")
        xid = int(_text(conn, "SELECT pg_current_xact_id()::text"))
        snapshot = _text(conn, "SELECT pg_current_snapshot()::text")
        content = json.dumps({PASSED: snapshot, "xid": xid, "since": int(Lsn.parse(since))})
        query = "SELECT pg_logical_emit_message(true, %s, %s)::text"
        row = conn.execute(query, (MARK.decode(), content)).fetchone()
        assert row is not None
    return _Mark(snapshot, Lsn.parse(row[0]))


def _text(conn: Connection, query: str) -> str:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])
