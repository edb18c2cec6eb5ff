"""A table's shape as the stream gave it: the Relation frame in force when a row was written.

The frame is the truth about names, types and order. What the frame cannot say (the primary key
under REPLICA IDENTITY FULL, the names of types) is read from the catalog once when the frame is
new, and never wins over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class ReplicaIdentity(StrEnum):
    """What Postgres writes of the old row; the values are pg_class.relreplident."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class NamedType(NamedTuple):
    """A type that is not built in.

    The values of a domain are those of its base type: the first that is no domain itself.
    `base_oid` is 0 for every other type. What a domain is made of never changes.
    """

    oid: int
    name: str
    base_oid: int = 0
    base_typmod: int = -1


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Relation frame."""

    name: str
    type_oid: int
    typmod: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """One version of a table's shape.

    `key` names the columns that identify a row: the primary key where the catalog knows it, else
    the replica identity's columns; empty if the table has neither. `is_keyless` if the catalog
    knows none at all and old rows come whole: then `key` is all of the columns, and equal rows
    cannot be told apart. `type_names` describes the types of columns that are not built in, as far
    as they are known.
    """

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    type_names: tuple[NamedType, ...] = ()
    is_keyless: bool = False

    @property
    def qualified(self) -> str:
        """`schema.name`, as the configuration and the lake's paths spell it."""
        return f"{self.schema}.{self.name}"

    @property
    def has_identity(self) -> bool:
        """Whether an old row comes with what tells it from others."""
        flagged = any(column.in_identity for column in self.columns)
        return self.identity is ReplicaIdentity.FULL or flagged

    @property
    def column_names(self) -> tuple[str, ...]:
        """In the order of the frame's tuples."""
        return tuple(column.name for column in self.columns)

    def base_type(self, column: Column) -> tuple[int, int]:
        """The type oid and typmod of the column's values: its own, or those of its domain."""
        for known in self.type_names:
            if known.oid == column.type_oid and known.base_oid:
                return known.base_oid, known.base_typmod
        return column.type_oid, column.typmod
