"""What of the buffers is not in the log yet, as the log itself tells.

A segment that came from a drain says which snapshot it was: what that shows is in the log, and
nothing else. Where a slot was streamed instead, marks stand in the stream: what a mark's snapshot
shows came before it. What it does not show may have come as well, or not, if the slot was lost; so
the numbers of the rows that came are read from the log. A number is given once, so this is exact.

How far back must that look? A mark also has the id of its transaction and a position before that
id was given. Whoever has a greater id has written nothing before that position.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from tailrace.log import Reader, segment
from tailrace.log.header import DRAINED
from tailrace.log.history import headers_back
from tailrace.model import Lsn, Offset
from tailrace.postgres.buffer import buffer
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag
from tailrace.postgres.session import Connection
from tailrace.storage import Store

BEGUN: Final = "begun"
"""In a note: the snapshot with which a slot's stream begins after this segment."""

PASSED: Final = "passed"
"""In a note, and in a mark: the snapshot whose transactions are all in the log before it."""

_ROW_OID_AT: Final = 1
_TRUNCATE_OID_AT: Final = 6


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Rows that `passed` does not show, unless their number is in `logged`, by table."""

    passed: str | None = None
    logged: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def condition(self) -> sql.Composable:
        """For the rows of any buffer; those in `logged` included."""
        if self.passed is None:
            return sql.SQL("true")
        passed = sql.SQL("{}::pg_snapshot").format(sql.Literal(self.passed))
        return sql.SQL(
            "xid >= pg_snapshot_xmin({0}) AND NOT pg_visible_in_snapshot(xid, {0})"
        ).format(passed)

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
    return Outstanding(passed, _logged(reader, max(since, reader.begin())))


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


def _oldest_xid(conn: Connection, tables: list[int], outstanding: Outstanding) -> int | None:
    query = sql.SQL("SELECT min(xid::text::numeric)::bigint FROM {} WHERE {}")
    found = [
        conn.execute(query.format(buffer(oid), outstanding.condition)).fetchone() for oid in tables
    ]
    return min(
        (int(row[0]) for row in found if row is not None and row[0] is not None), default=None
    )


def _logged(reader: Reader, since: Lsn) -> dict[int, NDArray[np.int64]]:
    """The numbers of the buffered rows that the log holds after a position."""
    found: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for link in reader.walk(Offset.whole(since)):
        bodies = [reader.read(link).frames] if not link.header.parts else []
        bodies += [segment.read(reader.store, part.key).frames for part in link.header.parts]
        for frames in bodies:
            for oid, numbers in _numbers(frames):
                found[oid].append(numbers)
    return {oid: np.unique(np.concatenate(numbers)) for oid, numbers in found.items()}


def _numbers(frames: Frames) -> list[tuple[int, NDArray[np.int64]]]:
    places = np.flatnonzero(frames.is_buffered)
    is_truncate = frames.tags[places] == Tag.TRUNCATE
    oids = frames.integers(places, _ROW_OID_AT, ">u4")
    oids[is_truncate] = frames.integers(places[is_truncate], _TRUNCATE_OID_AT, ">u4")
    numbers = frames.buffer_seqs[places]
    return [(oid, numbers[oids == oid]) for oid in np.unique(oids).tolist()]
