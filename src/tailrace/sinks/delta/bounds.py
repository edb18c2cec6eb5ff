"""The range of a batch's keys as literals, so that an engine skips files by their statistics alone.

Measured: with it, changes to neighbouring keys cost the same in a table of one and of five
million rows. A literal is written only if every engine reads it the same way; without one the
predicate is still right.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.keys import Column

Value: TypeAlias = "pa.Scalar[Any]"

_INTEGER_MIN: Final = -(1 << 63) + 1
_EPOCH: Final = date(1970, 1, 1)
_DAYS: Final = range((date.min - _EPOCH).days, (date.max - _EPOCH).days + 1)
# Neither a quote nor a backslash, which engines read in different ways.
_PLAIN_TEXT: Final = re.compile(r"[ -&(-\[\]-~]{0,512}")


def first_column_bounds(keys: pa.Table, *, alias: str = "") -> str | None:
    """`column >= low AND column <= high` for the key's first column, or None if there is no such
    literal.
    """
    column = keys.column(0)
    if not keys.num_rows:
        return None
    low, high = (literal(value, column.type) for value in _extremes(column))
    if low is None or high is None:
        return None
    name = f"{alias}{quote(keys.column_names[0])}"
    return f"{name} >= {low} AND {name} <= {high}"


def quote(name: str) -> str:
    """An identifier, as both engines read it."""
    return f"`{name.replace('`', '``')}`"


def timestamp(time: datetime) -> str:
    """A time with its zone, as both engines read it."""
    text = time.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")
    return f"CAST('{text}' AS TIMESTAMP)"


def _extremes(column: Column) -> tuple[Value, Value]:
    found = pc.min_max(column)
    return found["min"], found["max"]


def literal(value: Value, kind: pa.DataType) -> str | None:
    """A value as every engine reads it, or None."""
    if pa.types.is_integer(kind):
        number = int(value.as_py())
        return str(number) if number >= _INTEGER_MIN else None
    if pa.types.is_date32(kind):
        days = int(value.cast(pa.int32()).as_py())
        return f"CAST('{_EPOCH + timedelta(days)}' AS DATE)" if days in _DAYS else None
    if pa.types.is_string(kind):
        text = str(value.as_py())
        return f"'{text}'" if _PLAIN_TEXT.fullmatch(text) else None
    return None
