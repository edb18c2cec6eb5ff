"""The least type that holds every value of two types exactly, as far as a lake table may change to
it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pyarrow as pa

Field: TypeAlias = "pa.Field[Any]"
Decimal: TypeAlias = "pa.Decimal128Type[Any, Any]"

_PRECISION_MAX: Final = 38


def widest(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type for both; None if there is none."""
    if one == other:
        return one
    for family in (pa.types.is_signed_integer, pa.types.is_floating):
        if family(one) and family(other):
            return max(one, other, key=lambda kind: kind.bit_width)
    if isinstance(one, pa.Decimal128Type) and isinstance(other, pa.Decimal128Type):
        return _decimal(one, other)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _struct(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = widest(one.value_type, other.value_type)
        return None if inner is None else pa.list_(one.value_field.with_type(inner))
    if pa.types.is_map(one) and pa.types.is_map(other):
        same = one.key_type == other.key_type and one.item_type == other.item_type
        return one if same else None
    return None


def _decimal(one: Decimal, other: Decimal) -> pa.DataType | None:
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    return pa.decimal128(whole + scale, scale) if whole + scale <= _PRECISION_MAX else None


def _struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The fields of both, those of the first one first."""
    fields: dict[str, Field] = {field.name: field for field in _fields(one)}
    for field in _fields(other):
        held = fields.get(field.name)
        kind = field.type if held is None else widest(held.type, field.type)
        if kind is None:
            return None
        fields[field.name] = pa.field(field.name, kind)
    return pa.struct(list(fields.values()))


def _fields(kind: pa.DataType) -> list[Field]:
    return [kind.field(at) for at in range(kind.num_fields)]
