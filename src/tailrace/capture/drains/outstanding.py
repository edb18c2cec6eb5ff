"""What of the buffers is not in the log yet, as the log itself tells.

A segment that came from a drain says which snapshot it was: what that shows is in the log, and
nothing else. Where a slot was streamed instead, marks stand in the stream: what a mark's snapshot
shows came before it. What it does not show may have come as well, or not, if the slot was lost; so
the numbers of the rows that came are read from the log. A number is given once, so this is exact.

How far back must that look? A mark also has the id of its transaction and a position before that
id was given. Whoever has a greater id has written nothing before that position.

A commit may be streamed before anybody can see it: it waits for a standby, for instance. A drain
that does not see it would leave it to the next one, which knows nothing of what was streamed. So
the ids of what came are read as well, and the first drain waits until it sees all of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from tailrace.log import Reader, segment
from tailrace.log.header import DRAINED
from tailrace.log.history import headers_back
from tailrace.model import Lsn, Offset
from tailrace.postgres.buffer import buffer, read_buffers
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag
from tailrace.postgres.session import Connection
from tailrace.storage import Store

BEGUN: Final = "begun"
"""In a note: the snapshot with which a slot's stream begins after this segment."""

PASSED: Final = "passed"
"""In a note, and in a mark: the snapshot whose transactions are all in the log before it."""

_HALF: Final = 1 << 31
_ROW_OID_AT: Final = 1
_TRUNCATE_OID_AT: Final = 6


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Rows that `passed` does not show, unless their number is in `logged`, by table. `xids` are
    those of the transactions that were streamed, as Begin frames have them.
    """

    passed: str | None = None
    logged: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    xids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def condition(self) -> sql.Composable:
        """For the rows of any buffer; those in `logged` included."""
        if self.passed is None:
            return sql.SQL("true")
        passed = sql.SQL("{}::pg_snapshot").format(sql.Literal(self.passed))
        return sql.SQL(
            "xid >= pg_snapshot_xmin({0}) AND NOT pg_visible_in_snapshot(xid, {0})"
        ).format(passed)

    def is_seen_by(self, snapshot: str) -> bool:
        """Whether a snapshot shows every transaction that was streamed."""
        _, xmax, running = snapshot.split(":")
        open_ones = np.array([int(xid) for xid in running.split(",") if xid], np.int64)
        xids = _whole(self.xids, int(xmax))
        return not ((xids >= int(xmax)) | np.isin(xids, open_ones)).any()

    def exists_in(self, table_oid: int) -> sql.Composed:
        """Asks whether a table's buffer has such rows."""
        query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})")
        return query.format(buffer(table_oid), self.condition)


def read_outstanding(conn: Connection, store: Store, tables: list[int]) -> Outstanding:
    """As of the log's end; `conn` sees the buffers of these tables. Raises LogError."""
    reader = Reader(store)
    note = reader.tip().note or {}
    if DRAINED in note:
        return Outstanding(str(note[DRAINED]))
    passed, since = _newest_mark(conn, store, tables)
    return Outstanding(passed, *_logged(reader, max(since, reader.begin())))


def _newest_mark(conn: Connection, store: Store, tables: list[int]) -> tuple[str | None, Lsn]:
    """What is passed for sure, and where to look for what else has come."""
    passed: str | None = None
    oldest: int | None = None
    for header in headers_back(store):
        note = header.note or {}
        said = next((str(note[key]) for key in (PASSED, BEGUN, DRAINED) if key in note), None)
        if said is None:
            continue
        if passed is None:
            passed = said
            oldest = _oldest_xid(conn, tables, Outstanding(passed))
        if BEGUN in note:
            # Merged with what was streamed after it; what was drained in it the snapshot shows.
            return passed, header.start
        if oldest is None or PASSED not in note:
            return passed, header.end
        if int(str(note["xid"])) < oldest:
            return passed, Lsn.of(int(str(note["since"])), era=header.source.era)
    return passed, Lsn(0)


# Who has written to a buffer keeps its lock until others can see that.
_WRITERS: Final = """
SELECT own.transactionid::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
  FROM pg_locks AS own
 WHERE own.locktype = 'transactionid' AND own.granted AND own.mode = 'ExclusiveLock'
   AND own.virtualtransaction IN (
        SELECT l.virtualtransaction FROM pg_locks AS l
         WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND l.relation = ANY (%s::oid[]))
"""


def _oldest_xid(conn: Connection, tables: list[int], outstanding: Outstanding) -> int | None:
    """Of those whose rows are outstanding, and of those whose rows nobody can see yet: these first,
    as they may be seen a moment later.
    """
    buffers = [oid for table, oid in read_buffers(conn).items() if table in tables]
    running = [_whole(xid, end) for xid, end in conn.execute(_WRITERS, (buffers,))]
    query = sql.SQL("SELECT min(xid::text::numeric)::bigint FROM {} WHERE {}")
    found = [
        conn.execute(query.format(buffer(oid), outstanding.condition)).fetchone() for oid in tables
    ]
    seen = [int(row[0]) for row in found if row is not None and row[0] is not None]
    return min([*running, *seen], default=None)


_Ids = TypeVar("_Ids", int, NDArray[np.int64])


def _whole(xids: _Ids, end: int) -> _Ids:
    """Ids of 32 bits, with their epoch: all that can be met are within half a circle of `end`."""
    return end + (xids - end + _HALF) % (2 * _HALF) - _HALF


def _logged(reader: Reader, since: Lsn) -> tuple[dict[int, NDArray[np.int64]], NDArray[np.int64]]:
    """The numbers of the buffered rows that the log holds after a position, and the ids of all
    transactions there.
    """
    found: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    xids = [np.empty(0, np.int64)]
    for link in reader.walk(Offset.whole(since)):
        bodies = [reader.read(link).frames] if not link.header.parts else []
        bodies += [segment.read(reader.store, part.key).frames for part in link.header.parts]
        for frames in bodies:
            xids.append(np.unique(frames.xids()))
            for oid, numbers in _numbers(frames):
                found[oid].append(numbers)
    logged = {oid: np.unique(np.concatenate(numbers)) for oid, numbers in found.items()}
    return logged, np.unique(np.concatenate(xids))


def _numbers(frames: Frames) -> list[tuple[int, NDArray[np.int64]]]:
    places = np.flatnonzero(frames.is_buffered)
    is_truncate = frames.tags[places] == Tag.TRUNCATE
    oids = frames.integers(places, _ROW_OID_AT, ">u4")
    oids[is_truncate] = frames.integers(places[is_truncate], _TRUNCATE_OID_AT, ">u4")
    numbers = frames.buffer_seqs[places]
    return [(oid, numbers[oids == oid]) for oid in np.unique(oids).tolist()]
