"""Takes what triggers have buffered into the log, where there is no slot to stream it.

A drain is one transaction of the log. It reads, under one snapshot, the rows that the snapshot
shows and the log does not have; then a message is committed synchronously, and its LSN is where the
drain stands; then it is appended, with the snapshot as the note of its segment. So S1, up to which
the buffers are drained, is in the log and nowhere else: a drain that died has not happened, and one
that was appended is never drained again. The message forces to disk whatever the snapshot shows; a
commit that was not synchronous can be lost by a crash until then, and must not be in the log.

Rows are deleted later, when a snapshot shows them that the durable log has passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

import psycopg

from tailrace.capture.buffers.copying import read_buffer
from tailrace.capture.buffers.reading import WantBase
from tailrace.capture.buffers.shapes import ask_for_base
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.drains.answering import answer_requests
from tailrace.capture.drains.outstanding import BEGUN, Outstanding, read_outstanding
from tailrace.capture.drains.pace import Pace
from tailrace.capture.drains.passed_rows import PassedRows, buffers_of, bytes_of
from tailrace.capture.drains.taking import Moment, Taking
from tailrace.control.requests import open_requests
from tailrace.errors import SourceGap
from tailrace.failpoint import failpoint
from tailrace.log import Header
from tailrace.log.header import DRAINED
from tailrace.log.wanted import wanted_positions
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import MESSAGE_PREFIX
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.snapshot import Snapshot
from tailrace.storage import Store

logger = logging.getLogger(__name__)

DRAIN_PREFIX: Final = MESSAGE_PREFIX.decode() + "drain"
_TRANSACTION_TIMEOUT_VERSION_MIN: Final = 170000
_COMMIT_POLL_S: Final = 0.1

_SETTINGS: Final = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "120s",
}


class Drainer:
    """The drains of one leadership, one at a time; not thread-safe. `source` is whose requests for
    bases are answered: the name of the slot that it has, or would have. A look at the buffers is a
    drain and what is deleted after it; `pace` says when the next one is due.
    """

    def __init__(
        self,
        dsn: str,
        store: Store,
        writer: TranslatingWriter,
        *,
        source: str,
        era: int = 0,
        pace: Pace | None = None,
    ) -> None:
        self._dsn = dsn
        self._store = store
        self._writer = writer
        self._source = source
        self._era = era
        self._reader = connect(dsn, settings=_SETTINGS)
        self._speaker = connect(dsn, settings=_SETTINGS)
        self._outstanding: Outstanding | None = None
        self._drained: str | None = None
        # Tables whose buffers may hold rows that the log has; None stands for all.
        self._to_delete: set[int] | None = None
        self._passed_rows = PassedRows()
        self.pace = Pace() if pace is None else pace
        self._wanted_bytes = self._passed_bytes = 0
        self._want_base = ask_for_base(dsn, store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._reader.close()
        self._speaker.close()

    def _open(self) -> None:
        if self._reader.closed or self._speaker.closed:
            self._close()
            self._reader = connect(self._dsn, settings=_SETTINGS)
            self._speaker = connect(self._dsn, settings=_SETTINGS)

    def drain(self, go_on: Callable[[], None], *, always: bool = False) -> Header | None:
        """Take in what is there; None if there was nothing, unless it is to be appended `always`.
        `go_on` is called between pieces and may raise. Raises SourceError, LogError.
        """
        try:
            self._open()
            # Before the snapshot, so that it shows whatever those who ask know of.
            requests = open_requests(self._speaker, self._source)
            since = insert_position(self._speaker) if requests else Lsn(0)
            snapshot = self._begin_reading(go_on)
            with self.pace.looking():
                header = self._drain(snapshot, requests, go_on, always=always)
            if requests and header is not None:
                self._answer(requests, Lsn.of(since, era=self._era), header, go_on)
            self._reader.execute("ROLLBACK")
            return header
        except BaseException as error:
            # A copy that was not read to its end leaves a session that cannot be used.
            self._close()
            if isinstance(error, psycopg.Error):
                raise source_error(error) from error
            raise

    def delete(self, go_on: Callable[[], None]) -> int:
        """Delete the rows that the log has, batch by batch; how many. Raises SourceError."""
        count = 0
        try:
            self._open()
            if self._drained is not None and self._to_delete is None:
                self._to_delete = set(buffers_of(self._speaker, self._source))
            if self._drained is not None and self._to_delete:
                with self.pace.looking():
                    deleting = self._passed_rows.delete
                    for deleted in deleting(self._speaker, self._to_delete, self._drained):
                        count += deleted
                        go_on()
                self._to_delete = self._passed_rows.refused
        except psycopg.Error as error:
            raise source_error(error) from error
        self.pace.rest(wanted_bytes=self._wanted_bytes, passed_bytes=self._passed_bytes)
        self._wanted_bytes = self._passed_bytes = 0
        return count

    def end_at(self, session: Connection, snapshot: Snapshot, go_on: Callable[[], None]) -> Header:
        """The last drain before a slot is streamed: what its snapshot shows, at its position. The
        session is in the transaction that holds the snapshot. Raises psycopg.Error, LogError.
        """
        outstanding = self._outstanding_rows(session)
        buffers = buffers_of(session, self._source)
        position = Lsn.of(snapshot.position, era=self._era)
        taking = Taking(self._writer, xid=_own_xid(self._speaker))
        with taking:
            for frames in rows_of(session, buffers, outstanding, go_on, self._want_base):
                taking.add(frames)
                go_on()
            moment = Moment(position, taking.xid, snapshot.taken_ts_us)
            return taking.end(moment, DRAIN_PREFIX, snapshot.shown, {BEGUN: snapshot.shown})

    def _begin_reading(self, go_on: Callable[[], None]) -> str:
        """Begin under a snapshot that shows whatever the log has of a slot that is gone."""
        outstanding, is_said = self._outstanding_rows(self._speaker), False
        while True:
            snapshot = _begin_reading(self._reader)
            if outstanding.is_seen_by(snapshot):
                return snapshot
            self._reader.execute("ROLLBACK")
            if not is_said:
                logger.warning("drains wait for commits that were streamed and are not over yet")
                is_said = True
            go_on()
            time.sleep(_COMMIT_POLL_S)

    def _outstanding_rows(self, conn: Connection) -> Outstanding:
        if self._outstanding is None:
            tables = list(buffers_of(conn, self._source))
            self._outstanding = read_outstanding(conn, self._store, tables)
            self._drained = self._outstanding.passed
        return self._outstanding

    def _drain(
        self, snapshot: str, requests: list[int], go_on: Callable[[], None], *, always: bool
    ) -> Header | None:
        outstanding = self._outstanding_rows(self._reader)
        if outstanding.passed == snapshot and not requests and not always:
            # Nothing has been committed since.
            return None
        buffers = buffers_of(self._reader, self._source)
        self._passed_bytes += bytes_of(self._reader, buffers.values())
        filled = rows_outstanding(self._reader, buffers, outstanding)
        if not filled and not requests and not always:
            self._outstanding = Outstanding(snapshot)
            return None
        # Of a transaction that ends at once: one left open would be ended for being idle while the
        # server sorts.
        taking = Taking(self._writer, xid=_own_xid(self._speaker))
        with taking:
            for frames in rows_of(self._reader, filled, outstanding, go_on, self._want_base):
                self._wanted_bytes += frames.data_bytes
                taking.add(frames)
                go_on()
            failpoint("drain.before_message")
            moment = self._speak(snapshot, taking.xid)
            failpoint("drain.after_message")
            header = taking.end(moment, DRAIN_PREFIX, snapshot, {DRAINED: snapshot})
        failpoint("drain.after_append")
        self._outstanding, self._drained = Outstanding(snapshot), snapshot
        if self._to_delete is not None:
            self._to_delete |= set(filled)
        return header

    def _answer(
        self, requests: list[int], since: Lsn, header: Header, go_on: Callable[[], None]
    ) -> None:
        """Lend the snapshot, which is older than the drain's position. If a base was found to be
        missing between the two, one that is read now would be taken for it: the next drain lends.
        """
        if max(wanted_positions(self._store), default=Lsn(0)) <= since:
            answer_requests(self._reader, self._speaker, requests, header.end, go_on)

    def _speak(self, snapshot: str, xid: int) -> Moment:
        query = (
            "SELECT pg_logical_emit_message(true, %s, %s)::text, "
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
        row = self._speaker.execute(query, (DRAIN_PREFIX, snapshot)).fetchone()
        assert row is not None
        position = Lsn.of(Lsn.parse(row[0]), era=self._era)
        if position <= self._writer.position:
            raise SourceGap(
                f"the server is at {position}, the log ends at {self._writer.position}",
                hint="was the server restored from an older copy? then begin a new log",
            )
        return Moment(position, xid, int(row[1]))


def rows_outstanding(
    conn: Connection, buffers: dict[int, int], outstanding: Outstanding
) -> dict[int, int]:
    """The buffers that hold anything outstanding."""
    return {
        table: buffer
        for table, buffer in buffers.items()
        if conn.execute(outstanding.exists_in(table)).fetchone() == (True,)
    }


def rows_of(
    conn: Connection,
    buffers: dict[int, int],
    outstanding: Outstanding,
    go_on: Callable[[], None],
    want_base: WantBase,
) -> Iterator[Frames]:
    """All that is outstanding, table by table."""
    for table, buffer in buffers.items():
        yield from read_buffer(conn, table, buffer, outstanding, go_on, want_base)


def _begin_reading(conn: Connection) -> str:
    if conn.info.server_version >= _TRANSACTION_TIMEOUT_VERSION_MIN:
        conn.execute("SET transaction_timeout TO 0")
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row = conn.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return str(row[0])


def _own_xid(conn: Connection) -> int:
    """As Begin frames have it: without the epoch."""
    row = conn.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0]) & 0xFFFFFFFF
