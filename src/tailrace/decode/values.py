"""Postgres' text of values to typed Arrow arrays.

Invariant: a value comes out exactly as Postgres meant it, or as NULL; never as another value and
never as an error. The caller finds the NULLs that were not NULL and keeps their text.

Each type has a quick way, for columns in which every value is of the plain form, and a careful way,
taken when the quick one fails, which sorts out by pattern the values that Arrow cannot hold: NaN
and infinity in a numeric, infinity, BC and five-digit years in a date.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.decode.arrays import as_strings, nulls
from tailrace.decode.octets import to_binary
from tailrace.postgres.binaries import Array, text_bytes, text_offsets

_INTEGER: Final = r"^-?[0-9]+$"
_FLOAT: Final = r"^(-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|-?Infinity|NaN)$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_ZONE: Final = r"[+-][0-9]{2}(:[0-9]{2})?"

# Spark and Delta take the years 1 to 9999 only; in days and in microseconds since 1970.
_DAY_MIN: Final = -719_162
_DAY_MAX: Final = 2_932_896
_DAY_US: Final = 86_400_000_000


def convert(texts: Array, target: pa.DataType) -> Array:
    """The values of one column as `target`; NULL also where `target` cannot hold the value."""
    if texts.null_count == len(texts):
        return nulls(target, len(texts))
    if pa.types.is_string(target):
        return _to_string(texts)
    if pa.types.is_boolean(target):
        return _to_boolean(texts)
    if pa.types.is_binary(target):
        return to_binary(texts)
    if pa.types.is_integer(target):
        return _cast(texts, target, quick=_none_above("9", texts), pattern=_INTEGER)
    if isinstance(target, pa.Decimal128Type):
        return _to_decimal(texts, target)
    if pa.types.is_floating(target):
        return _cast(texts, target, quick=_none_above("~", texts), pattern=_FLOAT)
    if pa.types.is_date(target):
        days = _cast(texts, target, quick=_none_above("9", texts), pattern=_DATE)
        return _within(days, _DAY_MIN, _DAY_MAX)
    zone = _ZONE if isinstance(target, pa.TimestampType) and target.tz else ""
    stamps = _cast(texts, target, quick=_none_above(":", texts), pattern=f"{_TIMESTAMP}{zone}$")
    return _within(stamps, _DAY_MIN * _DAY_US, (_DAY_MAX + 1) * _DAY_US - 1)


def exact_text(texts: Array) -> Array:
    r"""Text for any bytes, without loss: bytes that are not UTF-8 become `\x` and two hex digits
    for each.

    Such bytes come from a database of encoding SQL_ASCII. They cannot be taken for text: a column
    of type string is NULL for no other reason, and Postgres' text of no other type but bytea starts
    with a backslash.
    """
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_exact(value) for value in texts.to_pylist()], pa.string())


def _exact(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"


def _to_string(texts: Array) -> Array:
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_utf8_or_none(value) for value in texts.to_pylist()], pa.string())


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return value.decode() if value is not None else None
    except UnicodeDecodeError:
        return None


def _none_above(top: str, texts: Array) -> bool:
    """Whether no byte is above the highest of the plain form: then there are no words among the
    values, and no hexadecimal that Arrow would take for a number."""
    return bool(text_bytes(texts).max(initial=0) <= ord(top))


def _cast(texts: Array, target: pa.DataType, *, quick: bool, pattern: str) -> Array:
    if quick:
        try:
            return as_strings(texts).cast(target)
        except pa.ArrowInvalid:
            pass
    plain = pc.match_substring_regex(texts, pattern)
    return _cast_what_fits(as_strings(pc.if_else(plain, texts, None)), target)


def _cast_what_fits(texts: Array, target: pa.DataType) -> Array:
    """Cast by halves, so that only the values which do not fit (a 31st of June) come out NULL."""
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return nulls(target, 1)
        half = len(texts) // 2
        halves = [_cast_what_fits(part, target) for part in (texts[:half], texts[half:])]
        return pa.concat_arrays(halves)


def _to_decimal(texts: Array, target: pa.Decimal128Type[Any, Any]) -> Array:
    """Arrow's cast to a decimal wraps around silently at 128 bits, so it only ever sees values
    with no more digits than the column has."""
    whole, scale = target.precision - target.scale, target.scale
    digits = f"[0-9]{{1,{whole}}}" if whole else "0"
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    quick = _none_above("9", texts) and _digits_fit(texts, whole, scale)
    return _cast(texts, target, quick=quick, pattern=f"^-?{digits}{fraction}$")


def _digits_fit(texts: Array, whole: int, scale: int) -> bool:
    """Whether every value has `scale` digits behind its point and at most `whole` before it."""
    data, offsets = text_bytes(texts), text_offsets(texts)
    starts, ends = offsets[:-1], offsets[1:]
    present = ends > starts
    if not present.all():
        starts, ends = starts[present], ends[present]
    point = ends - scale - 1 if scale else ends
    before = point - starts - (data[starts] == ord("-"))
    if not ((before >= 1) & (before <= whole)).all():
        return False
    return not scale or bool((data[point] == ord(".")).all())


def _within(values: Array, low: int, high: int) -> Array:
    """NULL where outside of `low` to `high`."""
    numbers = _numbers(values)
    inside = (numbers >= low) & (numbers <= high)
    if inside.all():
        return values
    kept: Array = pc.if_else(pa.array(inside), values, None)
    return kept


def _numbers(values: Array) -> NDArray[np.int64]:
    width = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    numbers: NDArray[np.int64] = values.view(width).fill_null(0).to_numpy()
    return numbers


def _to_boolean(texts: Array) -> Array:
    true, false = pc.equal(texts, pa.scalar(b"t")), pc.equal(texts, pa.scalar(b"f"))
    values: Array = pc.if_else(pc.or_(true, false), true, None)
    return values
