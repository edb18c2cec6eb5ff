"""The columns of a target and its key: as they are, as a relation needs them, and brought together.

The rules are those of every target that keeps rows (`sinks.evolution`); on top of them a column's
own type has to hold the old values and the new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tailrace.decode.types import arrow_type
from tailrace.model import Column, PgType, Relation, ReplicaIdentity
from tailrace.model.change import (
    BEFORE,
    COMMIT_LSN,
    COMMIT_TS,
    OP,
    ORDINAL,
    ORIGIN,
    UNCHANGED,
    XID,
)
from tailrace.sinks.columns import ArrowField, Mode
from tailrace.sinks.evolution import evolved, refuse_shape
from tailrace.sinks.postgres.types import TEXT, TEXTS, ColumnType, target_type, wider_type
from tailrace.sinks.refusal import require_key, require_names
from tailrace.sinks.shape import DROPPED_MARK, KEY_MARK, mark_of, with_mark

CHANGE_COLUMNS: Final = {
    OP: TEXT,
    COMMIT_LSN: ColumnType(PgType.INT8),
    ORDINAL: ColumnType(PgType.INT8),
    COMMIT_TS: ColumnType(PgType.TIMESTAMPTZ),
    XID: ColumnType(PgType.INT8),
    ORIGIN: TEXT,
    UNCHANGED: TEXTS,
    BEFORE: ColumnType(PgType.JSONB),
}
"""What a table of changes has beside the source's columns. Values are all in their own columns,
so there is no `_text`.
"""

_NO_NAMED_TYPES: Final = Relation(0, "", "", ReplicaIdentity.NOTHING, ())


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """`dropped` if the source has no such column any more."""

    name: str
    type: ColumnType
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A target's columns in its own order; `key` is empty for a table of changes."""

    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, relation: Relation, mode: Mode) -> Layout:
        """What the relation needs; raises SchemaError if it cannot be delivered in this mode."""
        require_names(relation)
        own = tuple(
            TargetColumn(column.name, target_type(relation, column)) for column in relation.columns
        )
        if mode is Mode.APPEND:
            return cls((*own, *(TargetColumn(*column) for column in CHANGE_COLUMNS.items())))
        require_key(relation)
        return cls(own, relation.key)

    def fitted(self, wanted: Layout, relation: Relation) -> Layout:
        """The same with what rows of `wanted` need; raises SchemaError."""
        shape = evolved(self.schema(), wanted.schema(), relation)
        held = {column.name: column for column in self.columns}
        new = {column.name: column for column in wanted.columns}
        columns = [
            _fitted(held.get(field.name), new.get(field.name), field, relation) for field in shape
        ]
        return replace(self, columns=tuple(columns))

    def schema(self) -> pa.Schema:
        """The columns as Arrow types, with the marks of the key and of what is dropped."""
        return pa.schema([self._field(column) for column in self.columns])

    def _field(self, column: TargetColumn) -> ArrowField:
        kind = arrow_type(_NO_NAMED_TYPES, Column(column.name, *column.type, in_identity=False))
        field: ArrowField = pa.field(column.name, kind)
        if column.dropped:
            field = with_mark(field, DROPPED_MARK, "true")
        if column.name in self.key:
            field = with_mark(field, KEY_MARK, str(self.key.index(column.name)))
        return field


def _fitted(
    held: TargetColumn | None, new: TargetColumn | None, field: ArrowField, relation: Relation
) -> TargetColumn:
    if held is None:
        assert new is not None, "a column comes from one of the two"
        return new
    if new is None:
        return replace(held, dropped=mark_of(field, DROPPED_MARK) is not None)
    kind = wider_type(held.type, new.type, field.type)
    if kind is None:
        raise refuse_shape(relation, f"column {field.name} has another type")
    return replace(held, type=kind)
