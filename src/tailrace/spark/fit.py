"""Rows of an older shape, read under a newer one of the same table.

A column that came later is NULL; one that is gone is left out; one whose type was widened is
widened. Nothing else is converted: a value is exact or the read ends.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import SchemaError
from tailrace.model import Relation

Array: TypeAlias = "pa.Array[Any]"
Field: TypeAlias = "pa.Field[Any]"


def fitted(changes: TableChanges, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns; raises SchemaError if a value could not be kept."""
    if changes.rows.schema.equals(schema):
        return changes.rows
    rows = changes.rows
    columns = [_column(rows, schema.field(i), changes.relation) for i in range(len(schema.names))]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(rows: pa.Table, field: Field, relation: Relation) -> Array:
    if field.name in rows.column_names:
        return _fitted(rows.column(field.name).combine_chunks(), field, relation)
    absent: Array = pa.nulls(len(rows), field.type)
    return absent


def _fitted(values: Array, field: Field, relation: Relation) -> Array:
    if values.type == field.type:
        return values
    if isinstance(values, pa.StructArray) and pa.types.is_struct(field.type):
        return _struct(values, field, relation)
    # Lists and maps differ from Spark's in the names of their inner fields only.
    if pa.types.is_nested(field.type) or _is_wider(values.type, field.type):
        return values.cast(field.type)
    raise SchemaError(
        f"{relation.qualified}.{field.name} was {values.type} and is {field.type} in this read",
        hint="read the rows from before the change of its type apart, with endingOffset",
    )


def _struct(values: pa.StructArray, field: Field, relation: Relation) -> Array:
    known = {values.type.field(i).name: i for i in range(values.type.num_fields)}
    fields = [field.type.field(i) for i in range(field.type.num_fields)]
    parts = [
        _fitted(values.field(known[inner.name]), inner, relation)
        if inner.name in known
        else pa.nulls(len(values), inner.type)
        for inner in fields
    ]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of the old type is one of the new, and reads as Postgres writes it."""
    is_whole = pa.types.is_signed_integer(old)
    if pa.types.is_string(new):
        return is_whole or pa.types.is_decimal(old)
    if pa.types.is_signed_integer(new):
        return is_whole and bool(new.bit_width > old.bit_width)
    if pa.types.is_float64(new):
        return pa.types.is_float32(old)
    if isinstance(new, pa.Decimal128Type) and isinstance(old, pa.Decimal128Type):
        whole, old_whole = new.precision - new.scale, old.precision - old.scale
        return bool(new.scale >= old.scale and whole >= old_whole)
    return False
