"""A table in memory that emits its changes as the decoder would: the oracle of the sink tests.

`rows` is what `SELECT * FROM table` would give, kept by plain dictionary operations. Values that
are not sent, old keys, whole old rows and texts are emitted by the rules of Postgres and the
decoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.model import Column, Lsn, Offset, Op, Origin, PgType, Relation, ReplicaIdentity
from tailrace.sinks import Batch, Load

NUMERIC_12_2 = ((12 << 16) | 2) + 4
NAN = "NaN"

Row = dict[str, object]

COLUMNS: Mapping[str, int] = {
    "id": PgType.INT8,
    "part": PgType.TEXT,
    "doc": PgType.TEXT,
    "amount": PgType.NUMERIC,
    "n": PgType.INT4,
}


def relation(
    name: str = "orders",
    *,
    key: Sequence[str] = ("id",),
    columns: Mapping[str, int] | None = None,
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    schema: str = "public",
) -> Relation:
    """A table; by default `id int8, part text, doc text, amount numeric(12,2), n int4`."""
    types = columns or COLUMNS
    made = tuple(
        Column(
            column,
            oid,
            NUMERIC_12_2 if oid == PgType.NUMERIC else -1,
            in_identity=column in key or identity is ReplicaIdentity.FULL,
        )
        for column, oid in types.items()
    )
    return Relation(16384, schema, name, identity, made, tuple(key))


@dataclass
class Source:
    """One table, its rows by key, and the changes since the last `take`."""

    relation: Relation = field(default_factory=relation)
    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    pending: list[Row] = field(default_factory=list)
    lsn: int = 0x1000

    def insert(self, **values: object) -> None:
        """INSERT; columns that are not given are NULL."""
        row = {name: values.get(name) for name in self.relation.column_names}
        assert self._key(row) not in self.rows, "the key exists"
        self.rows[self._key(row)] = row
        self._emit(Op.INSERT, row)

    def update(self, *key: object, unchanged: Sequence[str] = (), **values: object) -> None:
        """UPDATE; the columns in `unchanged` are large and are not sent."""
        old = self.rows.pop(key)
        row = {**old, **values}
        assert self._key(row) not in self.rows, "the key exists"
        self.rows[self._key(row)] = row
        sent = {name: None if name in unchanged else value for name, value in row.items()}
        self._emit(Op.UPDATE, sent, before=self._old_tuple(old, row), unchanged=unchanged)

    def delete(self, *key: object) -> None:
        """DELETE."""
        old = self.rows.pop(key)
        whole = self.relation.identity is ReplicaIdentity.FULL
        known = old if whole else self._only_key(old)
        self._emit(Op.DELETE, known, before=known)

    def truncate(self) -> None:
        """TRUNCATE."""
        self.rows.clear()
        self._emit(Op.TRUNCATE, dict.fromkeys(self.relation.column_names))

    def add_column(self, name: str, type_oid: int = PgType.TEXT) -> None:
        """ALTER TABLE ADD COLUMN, without a default."""
        column = Column(name, type_oid, -1, self.relation.identity is ReplicaIdentity.FULL)
        self.relation = replace(self.relation, columns=(*self.relation.columns, column))
        for row in self.rows.values():
            row[name] = None

    def drop_column(self, name: str) -> None:
        """ALTER TABLE DROP COLUMN."""
        left = tuple(column for column in self.relation.columns if column.name != name)
        self.relation = replace(self.relation, columns=left)
        for row in self.rows.values():
            del row[name]

    def rename_column(self, name: str, to: str) -> None:
        """ALTER TABLE RENAME COLUMN."""
        columns = tuple(
            replace(column, name=to) if column.name == name else column
            for column in self.relation.columns
        )
        self.relation = replace(self.relation, columns=columns)
        for key, row in self.rows.items():
            self.rows[key] = {to if old == name else old: value for old, value in row.items()}

    def retype_column(self, name: str, type_oid: int, typmod: int = -1) -> None:
        """ALTER TABLE ALTER COLUMN TYPE, to one that has the same values."""
        columns = tuple(
            replace(column, type_oid=type_oid, typmod=typmod) if column.name == name else column
            for column in self.relation.columns
        )
        self.relation = replace(self.relation, columns=columns)

    def take(self) -> TableChanges:
        """The changes since the last call."""
        changes = to_changes(self.relation, self.pending)
        self.pending = []
        return changes

    def base(self, *, rows_per_part: int = 2) -> list[pa.Table]:
        """All rows, as a base of the table gives them."""
        rows = [
            _change(Op.INSERT, row, lsn=self.lsn, ordinal=at, origin=Origin.SNAPSHOT)
            for at, row in enumerate(self.rows.values())
        ]
        parts = [rows[at : at + rows_per_part] for at in range(0, len(rows), rows_per_part)]
        return [to_changes(self.relation, part).rows for part in parts]

    def expected(self) -> list[tuple[object, ...]]:
        """The rows, each with its values and, last, the texts of those that are NULL for it."""
        rows = [(*_typed(row).values(), _texts(row)) for row in self.rows.values()]
        return sorted(rows, key=repr)

    def _key(self, row: Row) -> tuple[object, ...]:
        return tuple(row[name] for name in self.relation.key)

    def _only_key(self, row: Row) -> Row:
        return {name: row[name] if name in self.relation.key else None for name in row}

    def _old_tuple(self, old: Row, new: Row) -> Row | None:
        if self.relation.identity is ReplicaIdentity.FULL:
            return old
        return self._only_key(old) if self._key(old) != self._key(new) else None

    def _emit(
        self, op: Op, row: Row, *, before: Row | None = None, unchanged: Sequence[str] = ()
    ) -> None:
        self.lsn += 8
        self.pending.append(_change(op, row, lsn=self.lsn, before=before, unchanged=unchanged))


def _change(
    op: Op,
    row: Row,
    *,
    lsn: int,
    ordinal: int = 0,
    before: Row | None = None,
    unchanged: Sequence[str] = (),
    origin: Origin = Origin.WAL,
) -> Row:
    return {
        **_typed(row),
        "_op": op.value,
        "_commit_lsn": lsn,
        "_ordinal": ordinal,
        "_commit_ts": lsn * 1_000_000,
        "_xid": 1,
        "_origin": origin.value,
        "_unchanged": list(unchanged) or None,
        "_before": None if before is None else _typed(before),
        "_text": _texts(row),
    }


def to_changes(relation: Relation, rows: Sequence[Row]) -> TableChanges:
    """Rows of a change as the decoder would give them."""
    return TableChanges(relation, pa.Table.from_pylist(list(rows), schema=change_schema(relation)))


def batch_of(
    sequence: int, *tables: TableChanges, stream: str = "lake", known: Sequence[str] = ()
) -> Batch:
    """A batch; its range follows from its sequence."""
    after, upto = (Offset.whole(Lsn(0x1000 * at)) for at in (sequence, sequence + 1))
    return Batch(stream, sequence, after, upto, tables, frozenset(known))


def load_of(sequence: int, source: Source, *, stream: str = "lake") -> Load:
    """A load of the table as it is now."""
    return Load(stream, sequence, source.relation, Lsn(source.lsn), source.lsn * 1_000_000)


def _typed(row: Row) -> Row:
    """NaN does not fit a decimal."""
    return {name: None if value == NAN else value for name, value in row.items()}


def _texts(row: Row) -> list[tuple[str, str]] | None:
    return [(name, NAN) for name, value in row.items() if value == NAN] or None
