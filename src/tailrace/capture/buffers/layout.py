"""Where a buffer, as one of its Relation frames describes it, keeps the columns of its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tailrace.control.shapes import BufferShape
from tailrace.model import Relation, ReplicaIdentity
from tailrace.postgres.buffer import FIXED_COLUMNS, table_of_buffer


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """`places` are those of all columns, by name."""

    table_oid: int
    places: dict[str, int]

    @classmethod
    def of(cls, relation: Relation) -> Self | None:
        """None if this is no buffer."""
        table_oid = table_of_buffer(relation.schema, relation.name)
        if table_oid is None or relation.column_names[: len(FIXED_COLUMNS)] != FIXED_COLUMNS:
            return None
        return cls(table_oid, {name: at for at, name in enumerate(relation.column_names)})

    def columns(self, shape: BufferShape) -> tuple[list[int], list[int]]:
        """The places of a shape's columns, those of new rows and those of old ones."""
        return (
            [self.places[f"new_{slot}"] for slot in shape.slots],
            [self.places[f"old_{slot}"] for slot in shape.slots],
        )


def identity_of(shape: BufferShape) -> list[int]:
    """Which columns Postgres sends of an old row, unless it sends the whole row."""
    return [at for at, column in enumerate(shape.relation.columns) if column.in_identity]


def keeps_old_rows(shape: BufferShape) -> bool:
    """Whether an old row is sent whole: if that is asked for, or if nothing tells rows apart."""
    return shape.relation.identity is ReplicaIdentity.FULL or not identity_of(shape)


def keys_of(shape: BufferShape) -> list[int]:
    """Which columns identify a row."""
    names = shape.relation.key
    return [at for at, name in enumerate(shape.relation.column_names) if name in names]
