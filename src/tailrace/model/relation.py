"""A table's shape as the stream gave it: the Relation frame in force when a row was written.

The frame is the truth about names, types and order. What the frame cannot say (the primary key
under REPLICA IDENTITY FULL, the names of types) is read from the catalog once when the frame is
new, and never wins over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReplicaIdentity(StrEnum):
    """What Postgres writes of the old row; the values are pg_class.relreplident."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


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
    the replica identity's columns; empty if the table has neither. `type_names` gives Postgres'
    name for each type oid that is not built in.
    """

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    type_names: tuple[tuple[int, str], ...] = ()

    @property
    def qualified(self) -> str:
        """`schema.name`, as the configuration and the lake's paths spell it."""
        return f"{self.schema}.{self.name}"

    @property
    def column_names(self) -> tuple[str, ...]:
        """In the order of the frame's tuples."""
        return tuple(column.name for column in self.columns)
