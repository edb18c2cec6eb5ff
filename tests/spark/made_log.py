"""A log made by hand, quickly and without Postgres, beside a model of the tables behind it.

Each change is told to a `Table`, which gives the frame that Postgres would send and keeps the rows
that the table has afterwards: the oracle for whatever is made of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias

from tailrace.log import Base, BaseOrigin, Header
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import put_base, put_base_part
from tailrace.log.merge import MergePolicy, Merger
from tailrace.model import Column, Lsn, Offset, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import relation_frame
from tailrace.storage import Store
from tests.decode import wire
from tests.decode.copy_text import copy_lines
from tests.log import making

Row: TypeAlias = tuple[object, ...]

LATER_S = 4_000_000_000.0
"""A time by which everything in a log is old."""

TAKEN_TS_US = 1_800_000_000_000_000

NUMERIC_12_2 = ((12 << 16) | 2) + 4

ORDERS = Relation(
    16_400,
    "public",
    "orders",
    ReplicaIdentity.DEFAULT,
    (
        Column("id", PgType.INT8, -1, True),
        Column("note", PgType.TEXT, -1, False),
        Column("amount", PgType.NUMERIC, NUMERIC_12_2, False),
    ),
    ("id",),
)
ITEMS = Relation(
    16_500,
    "public",
    "items",
    ReplicaIdentity.DEFAULT,
    (Column("id", PgType.INT4, -1, True), Column("note", PgType.TEXT, -1, False)),
    ("id",),
)


@dataclass
class Table:
    """One table of the source: its shape, and its rows by key, which is the first column."""

    relation: Relation = ORDERS
    by_key: dict[object, Row] = field(default_factory=dict)
    is_announced: bool = False

    @property
    def rows(self) -> list[Row]:
        """The rows of now, by key."""
        return [self.by_key[key] for key in sorted(self.by_key, key=repr)]

    def insert(self, *row: object) -> bytes:
        """INSERT."""
        assert row[0] not in self.by_key and len(row) == len(self.relation.columns)
        self.by_key[row[0]] = row
        return wire.insert(self.relation.oid, _cells(row))

    def update(self, key: object, *row: object) -> bytes:
        """UPDATE of the whole row, its key included."""
        del self.by_key[key]
        self.by_key[row[0]] = row
        old = self._key_tuple(key) if row[0] != key else None
        return wire.update(self.relation.oid, _cells(row), key=old)

    def delete(self, key: object) -> bytes:
        """DELETE."""
        del self.by_key[key]
        return wire.delete(self.relation.oid, key=self._key_tuple(key))

    def truncate(self) -> bytes:
        """TRUNCATE."""
        self.by_key.clear()
        return wire.truncate(self.relation.oid)

    def add_column(self, name: str, type_oid: int = PgType.TEXT) -> None:
        """ALTER TABLE … ADD COLUMN, NULL in the rows that are there."""
        column = Column(name, type_oid, -1, False)
        self.alter(replace(self.relation, columns=(*self.relation.columns, column)))
        self.by_key = {key: (*row, None) for key, row in self.by_key.items()}

    def alter(self, relation: Relation) -> None:
        """Another shape from the next transaction on."""
        self.relation = relation
        self.is_announced = False

    def _key_tuple(self, key: object) -> list[wire.Cell]:
        return [*_cells([key]), *[None] * (len(self.relation.columns) - 1)]


def _cells(row: Sequence[object]) -> list[wire.Cell]:
    return [
        value if value is None or value is wire.UNSENT or isinstance(value, bytes) else str(value)
        for value in row
    ]


class MadeLog:
    """A log in a store, written to one transaction at a time.

    A table has an empty base at the beginning of the log as soon as it is written to, unless
    `has_bases` is false.
    """

    def __init__(self, store: Store, *, has_bases: bool = True, writer: str = "writer") -> None:
        self.store = store
        self.writer = making.begin_writer(store, writer)
        self.wal = making.Wal()
        self._has_bases = has_bases
        self._based: set[int] = set()

    @property
    def begin(self) -> Offset:
        """The position before everything."""
        return making.BEGINNING

    @property
    def end(self) -> Offset:
        """The position after everything."""
        return Offset.whole(self.wal.end)

    def commit(self, table: Table, *frames: bytes, ts_us: int | None = None) -> Offset:
        """A segment of one transaction, of this table; returns its end."""
        self.writer.append(self.transaction(table, *frames, ts_us=ts_us))
        return self.end

    def commit_in_parts(self, table: Table, *frames: bytes, cuts: Sequence[int]) -> Header:
        """One transaction in several objects, the cuts counted in its frames."""
        return making.put_in_parts(self.writer, self.transaction(table, *frames), *cuts)

    def transaction(self, table: Table, *frames: bytes, ts_us: int | None = None) -> Frames:
        """A transaction that is still to be appended."""
        if self._has_bases and table.relation.oid not in self._based:
            self.put_base(table.relation, [], position=self.begin.commit_lsn)
        head = [] if table.is_announced else [wire.relation(table.relation)]
        table.is_announced = True
        return self.wal.transaction(*head, *frames, ts_us=ts_us)

    def put_base(
        self,
        relation: Relation,
        rows: Sequence[Row],
        *,
        position: Lsn | None = None,
        part_rows: int = 4,
        folded_from: Lsn | None = None,
    ) -> Base:
        """The table as of `position`, or as of now: these rows, in parts of `part_rows`."""
        at = Lsn(self.wal.end if position is None else position)
        self._based.add(relation.oid)
        identity = BaseIdentity(making.SOURCE, relation.oid, at, "made")
        parts = tuple(
            put_base_part(
                self.store,
                identity,
                copy_lines([_cells(row) for row in rows[first : first + part_rows]]),
                stretch=number,
                number=0,
            )
            for number, first in enumerate(range(0, len(rows), part_rows))
        )
        base = Base(
            source=making.SOURCE,
            relation=relation,
            frame=relation_frame(relation),
            position=at,
            taken_ts_us=TAKEN_TS_US,
            origin=BaseOrigin.SNAPSHOT if rows else BaseOrigin.EMPTY,
            parts=parts,
            folded_from=folded_from,
        )
        put_base(self.store, base)
        return base

    def base_of(
        self, table: Table, *, position: Lsn | None = None, folded_from: Lsn | None = None
    ) -> Base:
        """A base of the table with the rows of now."""
        return self.put_base(table.relation, table.rows, position=position, folded_from=folded_from)

    def insert(self, table: Table, first: int, count: int = 1, *, size: int = 4) -> Offset:
        """Rows with keys from `first` on, as one transaction."""
        spare = len(table.relation.columns) - 2
        rows = (
            (key, f"{key:x}".rjust(size, "."), *[Decimal(key)] * spare)
            for key in range(first, first + count)
        )
        return self.commit(table, *(table.insert(*row) for row in rows))


def merge_all(log: MadeLog) -> None:
    """Merge what can be merged, and delete the small segments at once."""
    policy = MergePolicy(segment_count_min=2, grace_s=0.0)
    merger = Merger(log.store, writer_id="merger", policy=policy)
    while merger.step(LATER_S):
        pass
    merger.step(LATER_S)
