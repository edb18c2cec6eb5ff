"""Rows brought to the columns and types of a table that has, or had, more than they do.

A column that the rows lack is NULL; a narrower type is widened. What would not be exact is an
error: whoever calls has seen that the types fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode.arrays import nulls
from tailrace.model import META_COLUMNS
from tailrace.model.change import BEFORE
from tailrace.sinks.keys import Column

Array: TypeAlias = "pa.Array[Any]"
Field: TypeAlias = "pa.Field[Any]"


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    columns = [_column(rows, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def widen(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Changes, with values now and before typed as the columns of the same name are there."""
    kinds = {field.name: field.type for field in schema if field.name not in META_COLUMNS}
    before = [_typed(field, kinds) for field in _fields(rows.schema.field(BEFORE).type)]
    fields = [
        pa.field(BEFORE, pa.struct(before)) if field.name == BEFORE else _typed(field, kinds)
        for field in rows.schema
    ]
    return conform(rows, pa.schema(fields))


def _typed(field: Field, kinds: Mapping[str, pa.DataType]) -> Field:
    return pa.field(field.name, kinds.get(field.name, field.type))


def _fields(kind: pa.DataType) -> list[Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _column(rows: pa.Table, field: Field) -> Array | Column:
    if field.name not in rows.column_names:
        return nulls(field.type, rows.num_rows)
    column = rows.column(field.name)
    if column.type == field.type:
        return column
    return _as(pa.concat_arrays([nulls(column.type, 0), *column.chunks]), field.type)


def _as(values: Array, kind: pa.DataType) -> Array:
    if not (pa.types.is_struct(kind) and pa.types.is_struct(values.type)):
        return values.cast(kind)
    held = [field.name for field in _fields(values.type)]
    fields = _fields(kind)
    parts = [
        _as(pc.struct_field(values, [held.index(field.name)]), field.type)
        if field.name in held
        else nulls(field.type, len(values))
        for field in fields
    ]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())
