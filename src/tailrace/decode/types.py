"""Which Arrow type a column has, and the schema of a table's changes.

A Postgres type maps to an Arrow type that holds its ordinary values exactly, or it stays text. A
single value that the Arrow type cannot hold (NaN in a numeric, infinity in a date) is no reason to
make the whole column text: it is NULL in its column and kept in `_text`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa

from tailrace.model import Column, PgType, Relation, decimal_size
from tailrace.model.change import (
    BEFORE,
    COMMIT_LSN,
    COMMIT_TS,
    OP,
    ORDINAL,
    ORIGIN,
    TEXT,
    UNCHANGED,
    XID,
)

TIMESTAMP: Final = pa.timestamp("us")
TIMESTAMP_UTC: Final = pa.timestamp("us", tz="UTC")
NAMES: Final = pa.list_(pa.string())
TEXTS: Final = pa.map_(pa.string(), pa.string())

_PLAIN: Final[dict[int, pa.DataType]] = {
    PgType.BOOL: pa.bool_(),
    PgType.INT2: pa.int16(),
    PgType.INT4: pa.int32(),
    PgType.INT8: pa.int64(),
    PgType.FLOAT4: pa.float32(),
    PgType.FLOAT8: pa.float64(),
    PgType.BYTEA: pa.binary(),
    PgType.DATE: pa.date32(),
    PgType.TIMESTAMP: TIMESTAMP,
    PgType.TIMESTAMPTZ: TIMESTAMP_UTC,
}


def arrow_type(relation: Relation, column: Column) -> pa.DataType:
    """The Arrow type of one column; string where no type holds its values exactly."""
    type_oid, typmod = relation.base_type(column)
    if type_oid == PgType.NUMERIC and (size := decimal_size(typmod)):
        return pa.decimal128(size.precision, size.scale)
    return _PLAIN.get(type_oid, pa.string())


def wanted_columns(relation: Relation, columns: Collection[str] | None) -> tuple[Column, ...]:
    """The table's columns that are asked for, in the table's order; None asks for all."""
    if columns is None:
        return relation.columns
    return tuple(column for column in relation.columns if column.name in columns)


def arrow_schema(relation: Relation, columns: Collection[str] | None = None) -> pa.Schema:
    """The table's own columns, in the table's order; only `columns`, if given."""
    wanted = wanted_columns(relation, columns)
    return pa.schema([pa.field(column.name, arrow_type(relation, column)) for column in wanted])


def change_schema(relation: Relation, columns: Collection[str] | None = None) -> pa.Schema:
    """The table's own columns, followed by those that say what happened to the row and where."""
    own = list(arrow_schema(relation, columns))
    meta: list[pa.Field[Any]] = [
        pa.field(OP, pa.string()),
        pa.field(COMMIT_LSN, pa.int64()),
        pa.field(ORDINAL, pa.int64()),
        pa.field(COMMIT_TS, TIMESTAMP_UTC),
        pa.field(XID, pa.int64()),
        pa.field(ORIGIN, pa.string()),
        pa.field(UNCHANGED, NAMES),
        pa.field(BEFORE, pa.struct(own)),
        pa.field(TEXT, TEXTS),
    ]
    return pa.schema(own + meta)
