"""The shadow phase: both captures of a table run, and are compared before the one is given up.

A temporary slot of our own streams the table, through a publication of the tables that are just
being compared, and its buffer. The buffer's rows are translated to the frames that the table itself
would have sent, and compared with those that it did send. The log and its slot have no part in
this; when the session ends, however it ends, the slot is gone.
"""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress
from typing import Final

import numpy as np
import psycopg
from numpy.typing import NDArray

from tailrace.capture.buffers.reading import Shapes
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.hybrid.shadow_publication import publish, withdraw
from tailrace.capture.hybrid.shadow_rows import WholeTransactions, changes_by_key, difference
from tailrace.errors import SourceError, TailraceError
from tailrace.failpoint import failpoint
from tailrace.model import Lsn
from tailrace.postgres.blockers import listed, writers
from tailrace.postgres.buffer import read_buffers, table_of_buffer
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import connect, source_error

logger = logging.getLogger(__name__)

LOCK_TIMEOUT: Final = "2s"
"""How long the making of the slot waits for each transaction that is open."""

IDLE_TIMEOUT: Final = "120s"
"""After so long the server ends the session of a leader that was stopped: its slot keeps WAL."""

CHANGES_MAX: Final = 10_000
"""Postgres is asked for so many changes at a time, or a whole transaction."""

COMPARED_BYTES_MAX: Final = 32 << 20
"""So much is compared at a time; a transaction that does not fit is let pass."""

_OID_END: Final = 5

_MAKE: Final = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)"
_READ: Final = """
SELECT lsn::text, data
  FROM pg_logical_slot_get_binary_changes(%(slot)s, %(end)s::pg_lsn, %(changes)s,
                                          'proto_version', '1',
                                          'publication_names', %(publications)s)
 WHERE get_byte(data, 0) NOT IN (ascii('I'), ascii('U'), ascii('D'))
    OR substring(data FROM 2 FOR 4) = ANY (%(oids)s)
"""
"""Rows of the table and of its buffer alone: others' would have to be kept in memory as well."""


class Shadow:
    """One table's; ends with `close`. `compared` counts the keys of transactions that agreed.
    `leader_pid` is the backend that holds the lock of the slot's leader. Raises SourceError.
    """

    def __init__(
        self, dsn: str, names: SourceNames, table: TableInfo, shapes: Shapes, *, leader_pid: int
    ) -> None:
        self._table = table
        self._names = names
        self._leader_pid = leader_pid
        self._publications = (names.shadow, names.buffers)
        self._slot = f"tailrace_shadow_{secrets.token_hex(8)}"
        self._shapes = shapes
        self._unreadable: set[int] = set()
        self._conn = connect(
            dsn, settings={"lock_timeout": LOCK_TIMEOUT, "idle_session_timeout": IDLE_TIMEOUT}
        )
        self.compared = 0
        try:
            self._make()
        except BaseException as error:
            reason = self._why(error) if isinstance(error, psycopg.Error) else None
            self.close()
            if reason is None:
                raise
            raise reason from error
        self.began = time.monotonic()

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended the session, and with it the slot. It is not asked: so one
        at which nobody looks ends, whatever keeps the table from its turn.
        """
        try:
            # First come its last words, then that it has gone.
            for _ in range(2):
                self._conn.pgconn.consume_input()
        except psycopg.Error:
            return True
        return False

    def look(self) -> str:
        """Compare all that has come since the last look; what differs, in words, or nothing."""
        names = ",".join(f'"{name}"' for name in self._publications)
        asked: dict[str, object] = {
            "slot": self._slot,
            "changes": CHANGES_MAX,
            "publications": names,
        }
        try:
            oids = (self._table.oid, read_buffers(self._conn).get(self._table.oid, 0))
            asked["oids"] = [oid.to_bytes(4) for oid in oids]
            # Up to now: what writers add meanwhile is for the next look, or this one might not end.
            asked["end"] = str(wal_position(self._conn))
            while (whole := self._read(asked)).is_any:
                fault = self._compare(Frames.of(whole.frames, whole.lsns))
                failpoint("shadow.after_look")
                if fault:
                    return fault
        except psycopg.Error as error:
            raise source_error(error) from error
        return ""

    def _read(self, asked: dict[str, object]) -> WholeTransactions:
        """What comes next, row by row, so that no more than is compared is kept."""
        whole = WholeTransactions(COMPARED_BYTES_MAX)
        with self._conn.cursor() as cursor:
            for lsn, data in cursor.stream(_READ, asked):
                whole.add(data, int(Lsn.parse(lsn)))
        for xid in whole.too_large:
            name = self._table.qualified
            logger.warning("transaction is too large to be compared table=%s xid=%s", name, xid)
        return whole

    def close(self) -> None:
        """Leave nothing behind."""
        failpoint("shadow.before_close")
        with suppress(psycopg.Error, TailraceError):
            withdraw(self._conn, self._names, self._table.oid, leader_pid=self._leader_pid)
        self._conn.close()

    def _make(self) -> None:
        conn = self._conn
        publish(conn, self._names, self._table, leader_pid=self._leader_pid)
        failpoint("shadow.after_publication")
        # It waits for every transaction that was open: none is seen in part.
        conn.execute(_MAKE, (self._slot,))
        failpoint("shadow.after_made")

    def _why(self, error: psycopg.Error) -> SourceError:
        """What the making of the slot ran into."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            blockers = listed(writers(self._conn))
            return SourceError(
                f"the slot for comparing waits for open transactions: {blockers}", retry=True
            )
        return source_error(error)

    def _compare(self, frames: Frames) -> str:
        is_buffered = _of_buffers(frames)
        tags = frames.tags
        is_frame = (tags == Tag.BEGIN) | (tags == Tag.COMMIT)
        # Each read describes all tables again, and so each needs a translator of its own.
        translator = Translator(self._shapes, want_base=lambda oid, _: self._unreadable.add(oid))
        translated = translator.translate(frames.select(is_buffered | is_frame))
        if self._unreadable:
            return "a buffered row cannot be read: the table was altered beside its writer"
        by_trigger = changes_by_key(translated, self._table.oid)
        by_wal = changes_by_key(frames.select(~is_buffered), self._table.oid)
        fault = difference(by_trigger, by_wal)
        self.compared += 0 if fault else len(by_wal)
        return fault


def _of_buffers(frames: Frames) -> NDArray[np.bool_]:
    """For each frame, whether it describes a buffer or is a row of one."""
    relations = (frames.frame(int(at)) for at in np.flatnonzero(frames.tags == Tag.RELATION))
    parsed = map(parse_relation, relations)
    buffers = {each.oid for each in parsed if table_of_buffer(each.schema, each.name)}
    found = np.zeros(len(frames), dtype=np.bool_)
    places = frames.frames_of(Tag.RELATION, Tag.INSERT, size=_OID_END)
    found[places] = np.isin(frames.integers(places, 1, ">u4"), list(buffers))
    return found
