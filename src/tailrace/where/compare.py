"""How the values of each type are compared with a literal: below it, equal to it, or above.

Every comparison gives signs: -1, 0 or 1 for each value, as Postgres orders them. NaN equals itself
and is above every number.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.decode.types import arrow_type
from tailrace.errors import SchemaError
from tailrace.model import Column, PgType, Relation
from tailrace.where.predicate import Comparison, Like, Operator
from tailrace.where.rows import Array, mask_of

Signs = NDArray[np.int8]

_FIRST_OWN_OID: Final = 16_384
_EQUALITY: Final = (Operator.EQUAL, Operator.UNEQUAL)
_INT8_LIMIT: Final = 1 << 63
_TOO_FINE: Final = re.compile(r"[.,][0-9]{7}")


@dataclass(frozen=True, slots=True)
class Compare:
    """`signs` of a column, where a NULL may have any; `sign_of` one value, given as its text."""

    signs: Callable[[Array], Signs]
    sign_of: Callable[[str], int]


def comparison(predicate: Comparison | Like, relation: Relation) -> Compare:
    """How a column is compared; raises SchemaError if that is not possible."""
    column = next((each for each in relation.columns if each.name == predicate.column), None)
    if column is None:
        raise SchemaError(
            f"{relation.qualified} has no column {predicate.column}, which the where names",
            hint=f"columns: {', '.join(relation.column_names)}",
        )
    if isinstance(predicate, Like):
        return _like(predicate, relation, column)
    found = _compare(predicate, relation, column)
    if found is None:
        literal = predicate.literal
        shown = f"'{literal}'" if isinstance(literal, str) else str(literal).lower()
        raise SchemaError(
            f"the where compares {relation.qualified}.{column.name} by {predicate.operator} with"
            f" {shown}, which its type does not allow",
            hint="numbers, dates and times are ordered; texts, enums and uuids are equal or not;"
            " other types can only be NULL or not",
        )
    return found


def _compare(predicate: Comparison, relation: Relation, column: Column) -> Compare | None:
    literal, target = predicate.literal, arrow_type(relation, column)
    type_oid, _ = relation.base_type(column)
    if isinstance(literal, bool):
        is_plain = pa.types.is_boolean(target) and predicate.operator in _EQUALITY
        return _plain(pa.scalar(literal)) if is_plain else None
    if isinstance(literal, Decimal):
        return _number(target, type_oid, literal)
    if pa.types.is_date(target) or pa.types.is_timestamp(target):
        moment = _moment(literal, target)
        return None if moment is None else Compare(_plain(moment).signs, _far)
    is_text = pa.types.is_string(target) and predicate.operator in _EQUALITY
    return _text(type_oid, relation, column, literal) if is_text else None


def _plain(literal: pa.Scalar[pa.DataType]) -> Compare:
    """A value that its column holds."""

    def signs(values: Array) -> Signs:
        above, below = mask_of(pc.greater(values, literal)), mask_of(pc.less(values, literal))
        return above.astype(np.int8) - below.astype(np.int8)

    return Compare(signs, lambda _: 1)


def _number(target: pa.DataType, type_oid: int, literal: Decimal) -> Compare | None:
    def sign_of(text: str) -> int:
        value = Decimal(text)
        if value.is_nan() or literal.is_nan():
            return int(value.is_nan()) - int(literal.is_nan())
        return int(value.compare(literal))

    def one_by_one(values: Array) -> Signs:
        return np.array(
            [sign_of(str(value)) if value is not None else 0 for value in values.to_pylist()],
            dtype=np.int8,
        )

    def floats(values: Array) -> Signs:
        numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        wanted = float(literal)
        is_nan = np.isnan(numbers)
        above, below = (numbers > wanted) | is_nan, numbers < wanted
        if literal.is_nan():
            above, below = np.zeros_like(is_nan), ~is_nan
        signs: Signs = above.astype(np.int8) - below.astype(np.int8)
        return signs

    if pa.types.is_floating(target):
        return Compare(floats, sign_of)
    if not literal.is_finite() and not pa.types.is_string(target):
        return None
    if pa.types.is_integer(target):
        return Compare(_whole(literal), sign_of)
    if isinstance(target, pa.Decimal128Type):
        return Compare(_decimals(literal, target), sign_of)
    # Without a declared precision it is kept as text, which Arrow cannot compare as a number.
    return Compare(one_by_one, sign_of) if type_oid == PgType.NUMERIC else None


def _whole(literal: Decimal) -> Callable[[Array], Signs]:
    """Integers. A literal between two of them, or beyond all of them, equals none."""
    floor = math.floor(literal)
    at_floor = 0 if literal == floor else -1

    def signs(values: Array) -> Signs:
        if not -_INT8_LIMIT <= floor < _INT8_LIMIT:
            return np.full(len(values), -1 if floor > 0 else 1, dtype=np.int8)
        numbers = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.select([numbers > floor, numbers == floor], [1, at_floor], -1).astype(np.int8)

    return signs


def _decimals(literal: Decimal, target: pa.Decimal128Type) -> Callable[[Array], Signs]:
    """Numbers of one scale; as with integers, a literal may lie between two of them."""
    beyond = Decimal(10) ** (target.precision - target.scale)
    context = Context(prec=target.precision + 1, rounding=ROUND_FLOOR)
    is_within = abs(literal) < beyond
    floor = (
        literal.quantize(Decimal(1).scaleb(-target.scale), context=context)
        if is_within
        else literal
    )
    if abs(floor) >= beyond:
        return lambda values: np.full(len(values), -1 if floor > 0 else 1, dtype=np.int8)
    at_floor, bound = 0 if literal == floor else -1, pa.scalar(floor, target)

    def signs(values: Array) -> Signs:
        is_above, is_equal = mask_of(pc.greater(values, bound)), mask_of(pc.equal(values, bound))
        return np.select([is_above, is_equal], [1, at_floor], -1).astype(np.int8)

    return signs


def _moment(text: str, target: pa.DataType) -> pa.Scalar[pa.DataType] | None:
    """A date or a time; one with a zone is in UTC unless it says otherwise. Postgres rounds to
    microseconds what Python would cut off, so more digits are refused.
    """
    if _TOO_FINE.search(text):
        return None
    try:
        if pa.types.is_date(target):
            return pa.scalar(date.fromisoformat(text), target)
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    assert isinstance(target, pa.TimestampType)
    if target.tz:
        return pa.scalar((moment if moment.tzinfo else moment.replace(tzinfo=UTC)), target)
    return None if moment.tzinfo else pa.scalar(moment, target)


def _far(text: str) -> int:
    """A date or time outside of the years 1 to 9999, infinity included."""
    return -1 if text.startswith("-") or text.endswith("BC") else 1


def _text(type_oid: int, relation: Relation, column: Column, literal: str) -> Compare | None:
    match type_oid:
        case PgType.TEXT | PgType.VARCHAR:
            return _equal(literal)
        case PgType.BPCHAR:
            return _equal(literal.rstrip(" "), pc.ascii_rtrim, characters=" ")
        case PgType.UUID:
            try:
                return _equal(str(uuid.UUID(literal)))
            except ValueError:
                return None
        case PgType.NUMERIC:
            try:
                return _number(pa.string(), type_oid, Decimal(literal))
            except InvalidOperation:
                return None
    return _equal(literal) if _is_enum(type_oid, relation, column) else None


def _is_enum(type_oid: int, relation: Relation, column: Column) -> bool:
    """Whether it may be one. Of a domain over a type that is not built in the catalog does not tell
    what that is: it may well be citext, for which equal texts need not be the same.
    """
    names = {known.oid: known.name for known in relation.type_names}
    is_known = type_oid == column.type_oid or type_oid in names
    is_own = type_oid >= _FIRST_OWN_OID and is_known
    return is_own and not names.get(type_oid, "").endswith("citext")


def _equal(literal: str, *clean: Callable[..., Array], **told: str) -> Compare:
    def signs(values: Array) -> Signs:
        for function in clean:
            values = function(values, **told)
        return mask_of(pc.not_equal(values, pa.scalar(literal))).astype(np.int8)

    # What is no text at all equals none.
    return Compare(signs, lambda _: 1)


def _like(predicate: Like, relation: Relation, column: Column) -> Compare:
    type_oid, _ = relation.base_type(column)
    if type_oid not in (PgType.TEXT, PgType.VARCHAR):
        raise SchemaError(
            f"the where has LIKE for {relation.qualified}.{column.name}, which is no text",
            hint="LIKE is for columns of type text and varchar",
        )
    pattern = like_pattern(predicate.pattern, ignores_case=predicate.ignores_case)

    def signs(values: Array) -> Signs:
        return mask_of(pc.invert(pc.match_substring_regex(values, pattern))).astype(np.int8)

    return Compare(signs, lambda _: 1)


def like_pattern(pattern: str, *, ignores_case: bool) -> str:
    r"""A LIKE pattern as a regular expression of RE2, whose time is linear: `%` is anything, `_`
    one character, a backslash takes the next character as it is.
    """
    parts = re.findall(r"\\(.)|(.)", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    body = "".join(
        re.escape(taken) if taken else wild.get(plain, re.escape(plain)) for taken, plain in parts
    )
    return rf"{'(?is)' if ignores_case else '(?s)'}\A{body}\z"
