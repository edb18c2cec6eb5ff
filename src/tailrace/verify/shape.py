"""What of a table is compared: its columns, in the order in which a row's hash takes them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tailrace.model import PgType

Text: TypeAlias = str | None
Row: TypeAlias = tuple[bytes | None, ...]
"""The text of a row's columns; a float's is that of its bytes."""

_INTEGERS: Final = frozenset({PgType.INT2, PgType.INT4, PgType.INT8})


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column; `type_oid` is that of the type below its domains."""

    name: str
    type_oid: int
    is_nullable: bool = True

    @property
    def is_integer(self) -> bool:
        """Whether its values order as whole numbers do."""
        return self.type_oid in _INTEGERS

    @property
    def is_float(self) -> bool:
        """Whether its text is that of its bytes."""
        return self.type_oid in (PgType.FLOAT4, PgType.FLOAT8)


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that are compared, those of the key first: `key_count` of them.

    `is_hexed` if texts are hashed as hexadecimal digits of their UTF-8, because the server stores
    them in another encoding.
    """

    columns: tuple[ComparedColumn, ...]
    key_count: int
    is_hexed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)

    @property
    def key(self) -> tuple[ComparedColumn, ...]:
        """The columns that tell rows apart."""
        return self.columns[: self.key_count]
