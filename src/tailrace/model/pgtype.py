"""The built-in types that become something other than text.

Postgres sends every value as text. A type listed here is cast exactly by `decode`; any other stays
text. Oids below 16384 are fixed by Postgres (src/include/catalog/pg_type.dat).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

DECIMAL_PRECISION_MAX: Final = 38


class PgType(IntEnum):
    """Type oids."""

    BOOL = 16
    BYTEA = 17
    INT8 = 20
    INT2 = 21
    INT4 = 23
    TEXT = 25
    JSON = 114
    FLOAT4 = 700
    FLOAT8 = 701
    BPCHAR = 1042
    VARCHAR = 1043
    DATE = 1082
    TIME = 1083
    TIMESTAMP = 1114
    TIMESTAMPTZ = 1184
    NUMERIC = 1700
    UUID = 2950
    JSONB = 3802


class NumericSize(NamedTuple):
    """The declared precision and scale of a numeric column."""

    precision: int
    scale: int


def numeric_size(typmod: int) -> NumericSize | None:
    """What `numeric(p, s)` declared, or None for a bare `numeric`.

    The typmod is `((p << 16) | (s & 0x7FF)) + 4`; the scale is 11 bits, signed since Postgres 15.

    >>> numeric_size(((12 << 16) | 2) + 4)
    NumericSize(precision=12, scale=2)
    """
    if typmod < 4:
        return None
    packed = typmod - 4
    scale = packed & 0x7FF
    return NumericSize(packed >> 16, scale - 0x800 if scale & 0x400 else scale)


def decimal_size(typmod: int) -> NumericSize | None:
    """The size of a decimal that holds every finite value of a numeric column, or None if its
    values stay text.

    >>> decimal_size(((39 << 16) | 2) + 4)
    """
    size = numeric_size(typmod)
    if size is None or not 1 <= size.precision <= DECIMAL_PRECISION_MAX:
        return None
    return size if 0 <= size.scale <= size.precision else None
