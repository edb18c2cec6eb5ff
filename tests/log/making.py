"""Makes logs out of nothing: transactions as a connection brings them, and what a reader must see.

Every row is different, so that a change that is lost or doubled can be told from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from tailrace.decode import OpenTransaction, TableChanges, decode
from tailrace.log import Header, Reader, Segment, SourceIdentity, Tip, Writer, put_genesis
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.offsets import ChangeOffsets
from tailrace.log.plan import Piece, fetch, pieces
from tailrace.model import Column, Lsn, Offset, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.decode import wire

SOURCE: Final = SourceIdentity("7400000000000000001", 1)
START: Final = Lsn(0x1000)
BEGINNING: Final = Offset.whole(START)
NOTE: Final = {"slot": "tailrace_main"}

Change: TypeAlias = tuple[Offset, bytes]
"""Where a change stands, and the frame that holds it."""


def shape(oid: int = 16_400, *columns: str, name: str = "") -> Relation:
    """A table of text columns, the first of which is its key."""
    names = columns or ("id",)
    made = tuple(Column(each, PgType.TEXT, -1, each == names[0]) for each in names)
    return Relation(
        oid, "public", name or f"t{oid}", ReplicaIdentity.DEFAULT, made, (names[0],), ()
    )


def no_catalog(relations: Sequence[Relation]) -> Sequence[Relation]:
    """A catalog in which every table is gone."""
    return relations


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def merge_all(store: MemoryStore, clock: Clock) -> None:
    """Merge what can be merged, and wait until the small segments are gone."""
    merger = Merger(store, writer_id="merger", policy=MergePolicy(1 << 20, 2, 1.0))
    for _ in range(4):
        clock.now_s += 10
        merger.step(clock.now_s)


class Wal:
    """Writes transactions one after the other and remembers every change with its offset."""

    def __init__(self, start: int = START) -> None:
        self.end = Lsn(start)
        self.changes: list[Change] = []
        self._row_number = 0
        self._xid = 700

    def row(self, relation: Relation) -> bytes:
        """An insert like no other."""
        self._row_number += 1
        return wire.insert(relation.oid, [f"row {self._row_number}"] * len(relation.columns))

    def transaction(self, *frames: bytes, step: int = 100, ts_us: int | None = None) -> Frames:
        """A whole transaction of these frames, which ends `step` after the one before."""
        self.end = Lsn(self.end + step)
        self._xid += 1
        time_us = self._xid * 1_000_000 if ts_us is None else ts_us
        self._remember(frames)
        return _run(
            [wire.begin(self._xid, time_us), *frames, wire.commit(self.end, time_us)],
            self.end - step,
        )

    def rows(self, relation: Relation, count: int = 1, *, announce: bool = True) -> Frames:
        """A whole transaction of so many rows."""
        head = [wire.relation(relation)] if announce else []
        return self.transaction(*head, *(self.row(relation) for _ in range(count)))

    def _remember(self, frames: Iterable[bytes]) -> None:
        ordinal = 0
        for frame in frames:
            tables = int.from_bytes(frame[1:5], "big") if frame[:1] == b"T" else 1
            if frame[:1] in b"IUDT":
                for _ in range(tables):
                    self.changes.append((Offset(self.end, ordinal), frame))
                    ordinal += 1


def _run(frames: list[bytes], lsn: int) -> Frames:
    return Frames.of(frames, [lsn + number for number in range(len(frames))])


def begin(store: Store, start: Lsn = START) -> Tip:
    """An empty log."""
    return put_genesis(store, SOURCE, start, writer_id="genesis", note=NOTE)


def writer(store: Store, tip: Tip, name: str = "writer") -> Writer:
    """A writer that knows no catalog."""
    return Writer(store, tip, writer_id=name, describe=no_catalog)


def begin_writer(store: Store, name: str = "writer") -> Writer:
    """An empty log and its writer."""
    return writer(store, begin(store), name)


def put_in_parts(to: Writer, transaction: Frames, *cuts: int) -> Header:
    """Append a transaction as parts that end before these frames, and its Commit alone."""
    last = len(transaction) - 1
    bounds = [0, *cuts, last]
    for first, end in pairwise(bounds):
        to.put_part(transaction.slice(first, end))
    return to.append(transaction.slice(last, last + 1))


def anything(relation: Relation) -> bool:
    """Wants all tables."""
    return True


def changes_of(piece: Piece, found: Segment) -> list[Change]:
    """The changes of one piece, in order."""
    frames = found.frames
    if piece.part is None:
        offsets = ChangeOffsets.of(frames)
    else:
        part = piece.part
        offsets = ChangeOffsets.of_part(
            frames, first_ordinal=part.first_ordinal, commit_lsn=part.commit_lsn
        )
    changes = [
        (Offset(offsets.at(place).commit_lsn, offsets.at(place).ordinal + extra), place)
        for place in offsets.counts.nonzero()[0].tolist()
        for extra in range(int(offsets.counts[place]))
    ]
    return [
        (offset, frames.frame(place))
        for offset, place in changes
        if piece.after < offset <= piece.upto
    ]


def between(changes: list[Change], after: Offset, upto: Offset) -> list[Change]:
    """The changes of a range."""
    return [change for change in changes if after < change[0] <= upto]


def read(store: Store, after: Offset = BEGINNING, upto: Offset | None = None) -> list[Change]:
    """All changes of a range, as a new reader sees them."""
    reader = Reader(store)
    end = Offset.whole(reader.tip().segment_end) if upto is None else upto
    return [
        change
        for planned in pieces(reader, after, end, wanted=anything)
        for piece, found in fetch(store, planned, wanted=anything)
        for change in changes_of(piece, found)
    ]


def decoded_tables(store: Store, after: Offset = BEGINNING) -> Iterator[TableChanges]:
    """All that the log holds after an offset, each object decoded alone."""
    reader = Reader(store)
    for piece in pieces(reader, after, Offset.whole(reader.tip().segment_end), wanted=anything):
        for found, segment in fetch(store, piece, wanted=anything):
            part = found.part
            yield from decode(
                segment.frames,
                initial=segment.header.initial,
                versions=segment.header.versions,
                after=found.after,
                upto=found.upto,
                open_transaction=None
                if part is None
                else OpenTransaction(
                    part.commit_lsn, part.commit_ts_us, part.xid, part.first_ordinal
                ),
            )


def decoded(store: Store, after: Offset = BEGINNING) -> list[tuple[Offset, str, str]]:
    """Offset, table and first column of every change."""
    rows: list[tuple[Offset, str, str]] = []
    for changes in decoded_tables(store, after):
        columns = changes.relation.column_names
        for row in changes.rows.to_pylist():
            offset = Offset(Lsn(row["_commit_lsn"]), row["_ordinal"])
            rows.append((offset, ",".join(columns), row[columns[0]]))
    return sorted(rows)
