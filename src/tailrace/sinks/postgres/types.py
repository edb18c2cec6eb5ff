"""Which type a column has in the target, and the least one that holds an old and a new type.

A column has the type of its source, a domain that of what it is made of. Text are: types that the
other database does not know by the same number (enums, composites, types of extensions), those
whose values name objects of the database that they come from (`regclass`, `aclitem`), and `xml`,
which not every server is built to read.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from tailrace.model import Column, PgType, Relation

Decimal: TypeAlias = "pa.Decimal128Type[Any, Any]"


class ColumnType(NamedTuple):
    """A type and its size, as the catalog has them."""

    oid: int
    typmod: int = -1


TEXT: Final = ColumnType(PgType.TEXT)
TEXTS: Final = ColumnType(1009)

# Numbers below this are given by hand and the same in every database (transam.h).
_FIXED_OID_MAX: Final = 9_999
_LOCAL: Final = frozenset(
    [
        *(24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191),  # regproc …
        *(1008, 2207, 2208, 2209, 2210, 2211, 3735, 3770, 4090, 4097, 4192),  # their arrays
        *(1033, 1034),  # aclitem
        *(71, 75, 81, 83, 210, 270, 272, 273),  # rows of the catalog
        *(3642, 3644),  # gtsvector, which takes no value
        *(142, 143),  # xml
    ]
)
TOLD_APART_BY_TEXT: Final = frozenset(
    [
        *(PgType.INT2, PgType.INT4, PgType.INT8, PgType.FLOAT8, PgType.NUMERIC),
        *(PgType.TEXT, PgType.VARCHAR, PgType.BPCHAR, PgType.UUID, PgType.BOOL, PgType.BYTEA),
        *(PgType.DATE, PgType.TIMESTAMP, PgType.TIMESTAMPTZ),
    ]
)
"""Types whose equal values have the same text, but for the zeros of a number. Intervals, for
instance, do not: a day is 24 hours. Nor does a float4 that is widened: it gets more digits.
"""

_WIDTHS: Final = ((PgType.INT2, PgType.INT4, PgType.INT8), (PgType.FLOAT4, PgType.FLOAT8))
_WITH_LENGTH: Final = (PgType.VARCHAR, PgType.BPCHAR)


def target_type(relation: Relation, column: Column) -> ColumnType:
    """The type of the target's column."""
    oid, typmod = relation.base_type(column)
    return TEXT if oid > _FIXED_OID_MAX or oid in _LOCAL else ColumnType(oid, typmod)


def wider_type(held: ColumnType, wanted: ColumnType, kind: pa.DataType) -> ColumnType | None:
    """The type that holds every value of both; None if there is none. `kind` is the Arrow type
    that does.
    """
    if held == wanted:
        return held
    if isinstance(kind, pa.Decimal128Type):
        return _numeric(kind)
    if held.oid == wanted.oid:
        is_sized = held.oid in _WITH_LENGTH and -1 not in (held.typmod, wanted.typmod)
        return ColumnType(held.oid, max(held.typmod, wanted.typmod) if is_sized else -1)
    if {held.oid, wanted.oid} == {PgType.VARCHAR, PgType.TEXT}:
        return TEXT
    for family in _WIDTHS:
        if held.oid in family and wanted.oid in family:
            return max(held, wanted, key=lambda each: family.index(PgType(each.oid)))
    return None


def _numeric(kind: Decimal) -> ColumnType:
    return ColumnType(PgType.NUMERIC, ((kind.precision << 16) | kind.scale) + 4)
