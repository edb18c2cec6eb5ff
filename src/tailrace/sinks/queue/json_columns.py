"""Columns of values as columns of JSON text, so that whole batches are rendered and not rows.

Numbers, booleans and NULL are JSON's own; what JSON has no word for (NaN, infinity, dates, digits
that a double would round) is a string. A value that its column could not hold is its exact text
from `_text`, as a string. docs/reference/queues.md has the rule for each type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = "pa.Array[Any]"
Scalar: TypeAlias = "pa.Scalar[Any]"

_join: Final[Callable[..., Array]] = pc.binary_join_element_wise
"""Its last argument stands between the others; the stubs know it only for arguments of one kind."""

_QUOTE: Final = pa.scalar('"')
_NOTHING: Final = pa.scalar("")
_NULL: Final = pa.scalar("null")
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


class Style(StrEnum):
    """How times and bytes are written: as Debezium does, or as ISO 8601 and Postgres do."""

    DEBEZIUM = "debezium"
    PLAIN = "plain"


def json_values(values: Array, style: Style, texts: Mapping[int, str]) -> Array:
    """Each value as JSON; `texts` are those, by row, that the column could not hold."""
    written = or_null(_json(values, style))
    if not texts:
        return written
    found = written.to_pylist()
    for row, text in texts.items():
        found[row] = json.dumps(text, ensure_ascii=False)
    return pa.array(found, pa.string())


def json_members(names: list[str], columns: list[Array]) -> Array:
    """`{"name":value,…}` for each row; a member whose JSON is NULL (not `null`) is left out."""
    prefixed = [
        joined(pa.scalar(f"{json.dumps(name, ensure_ascii=False)}:"), column)
        for name, column in zip(names, columns, strict=True)
    ]
    inner = _join(*prefixed, pa.scalar(","), null_handling="skip")
    return joined(pa.scalar("{"), inner, pa.scalar("}"))


def joined(*parts: Array | Scalar) -> Array:
    """The texts of each row, one after the other; NULL if any is."""
    return _join(*parts, _NOTHING)


def or_null(texts: Array) -> Array:
    """The same, with the word for NULL where there is none."""
    return texts.fill_null(_NULL)


def json_strings(values: Array) -> Array:
    """Texts as JSON strings. Python runs only for values with control characters."""
    if not pc.any(pc.match_substring_regex(values, _NEEDS_ESCAPE)).as_py():
        return joined(_QUOTE, values, _QUOTE)
    control = pc.match_substring_regex(values, r"[\x00-\x1f]").fill_null(False)
    plain = pc.replace_substring(values, "\\", "\\\\")
    quoted = joined(_QUOTE, pc.replace_substring(plain, '"', '\\"'), _QUOTE)
    rows = np.flatnonzero(control.to_numpy(zero_copy_only=False))
    if not len(rows):
        return quoted
    found = quoted.to_pylist()
    for row in rows:
        found[row] = json.dumps(values[int(row)].as_py(), ensure_ascii=False)
    return pa.array(found, pa.string())


def _json(values: Array, style: Style) -> Array:
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(values)
    if pa.types.is_decimal(kind):
        return joined(_QUOTE, _digits(values), _QUOTE)
    if pa.types.is_binary(kind):
        return _octets(values, style)
    if pa.types.is_date(kind):
        if style is Style.DEBEZIUM:
            return values.cast(pa.int32()).cast(pa.string())
        return joined(_QUOTE, values.cast(pa.string()), _QUOTE)
    if pa.types.is_timestamp(kind):
        if style is Style.DEBEZIUM and not kind.tz:
            return values.cast(pa.int64()).cast(pa.string())
        return iso_times(values)
    return json_strings(values)


def iso_times(values: Array) -> Array:
    """`"2026-01-15T10:00:00.000000"`, with a `Z` behind it if the times are in UTC."""
    texts = values.cast(pa.string())
    return joined(_QUOTE, pc.replace_substring(texts, " ", "T"), _QUOTE)


def _floats(values: Array) -> Array:
    texts = values.cast(pa.string())
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return texts
    for written, name in _NOT_FINITE.items():
        texts = pc.if_else(pc.equal(texts, pa.scalar(written)), pa.scalar(name), texts)
    return texts


def _digits(values: Array) -> Array:
    """Every digit, never an exponent: Arrow writes one for numbers near zero."""
    texts = values.cast(pa.string())
    short = pc.match_substring(texts, "E").fill_null(False).to_numpy(zero_copy_only=False)
    if not short.any():
        return texts
    found = texts.to_pylist()
    for row in np.flatnonzero(short):
        found[row] = f"{values[int(row)].as_py():f}"
    return pa.array(found, pa.string())


def _octets(values: Array, style: Style) -> Array:
    if style is Style.DEBEZIUM:
        texts = [v if v is None else base64.b64encode(v).decode() for v in values.to_pylist()]
    else:
        texts = [v if v is None else f"\\\\x{v.hex()}" for v in values.to_pylist()]
    return joined(_QUOTE, pa.array(texts, pa.string()), _QUOTE)
