"""SQL for what the source computes: the text of a value, the hash of a row, the cell it is in.

Functions are Postgres' own and named without a schema, which the pinned search_path makes safe.
Values are literals and not parameters: with those, a % in the name of a column would be one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from tailrace.model import PgType
from tailrace.verify.hashing import SEED
from tailrace.verify.ranges import SLOTS, Bounds, neighbours
from tailrace.verify.shape import ComparedColumn, Shape
from tailrace.verify.texts import FLOAT_NAN
from tailrace.where.predicate import And, Comparison, IsNull, Like, Not, Or, Predicate

# The types whose cast to text is their output function. Others have a cast of their own, which
# strips the blanks of a char(n) or writes out true; format() takes the output function of any.
_PLAIN_CAST: Final = frozenset(
    {
        *(PgType.INT2, PgType.INT4, PgType.INT8, PgType.NUMERIC, PgType.TEXT, PgType.VARCHAR),
        *(PgType.DATE, PgType.TIME, PgType.TIMESTAMP, PgType.TIMESTAMPTZ, PgType.UUID),
        *(PgType.JSON, PgType.JSONB),
    }
)
_FLOATS: Final[dict[int, tuple[sql.SQL, str]]] = {
    PgType.FLOAT4: (sql.SQL("float4send"), FLOAT_NAN[4]),
    PgType.FLOAT8: (sql.SQL("float8send"), FLOAT_NAN[8]),
}
_RUNS_MAX: Final = 64
"""So many runs of neighbouring ranges are looked up by themselves, with an index if there is one;
if there are more, all rows are looked at.
"""


def text(column: ComparedColumn) -> sql.Composed:
    """The value's text; of a NULL, anything."""
    name = sql.Identifier(column.name)
    if column.type_oid in _FLOATS:
        send, nan = _FLOATS[column.type_oid]
        return sql.SQL(
            "CASE WHEN {name} = 'NaN' THEN {nan} ELSE encode({send}({name}), 'hex') END"
        ).format(name=name, send=send, nan=sql.Literal(nan))
    if column.type_oid == PgType.BOOL:
        return sql.SQL("CASE WHEN {} THEN 't' ELSE 'f' END").format(name)
    if column.type_oid == PgType.BPCHAR:
        return sql.SQL("textin(bpcharout({}))").format(name)
    if column.type_oid in _PLAIN_CAST:
        return sql.SQL("{}::text").format(name)
    return sql.SQL("format('%s', {})").format(name)


def exact_text(column: ComparedColumn) -> sql.Composed:
    """The bytes of the value's text in UTF-8; NULL for NULL."""
    return sql.SQL("CASE WHEN {} THEN textsend({}) END").format(_is_there(column), text(column))


def row_hash(shape: Shape) -> sql.Composable:
    """The hash of all columns."""
    return _chain(shape.columns, is_hexed=shape.is_hexed)


def slot(shape: Shape) -> sql.Composed:
    """The slot of the row, by the hash of its key."""
    key = _chain(shape.key, is_hexed=shape.is_hexed)
    return sql.SQL("({} & {})::int").format(key, sql.Literal(SLOTS - 1))


def range_number(shape: Shape, bounds: Bounds) -> sql.Composable:
    """The range of the row."""
    if not bounds.values:
        return sql.SQL("0")
    kind = sql.SQL("bigint[]" if bounds.are_numbers else "text[]")
    return sql.SQL("width_bucket({}, {}::{})").format(
        _ranged(shape.columns[0], bounds), sql.Literal(list(bounds.values)), kind
    )


def within(shape: Shape, bounds: Bounds, ranges: Sequence[int]) -> sql.Composable:
    """Whether the row is in one of these ranges."""
    if len(ranges) == bounds.range_count:
        return sql.SQL("true")
    runs = neighbours(sorted(ranges))
    if len(runs) > _RUNS_MAX:
        wanted = sql.Literal(sorted(ranges))
        return sql.SQL("{} = ANY ({})").format(range_number(shape, bounds), wanted)
    value = _ranged(shape.columns[0], bounds)
    return sql.SQL("({})").format(
        sql.SQL(" OR ").join(_between(value, bounds, first, last) for first, last in runs)
    )


def fulfils(predicate: Predicate) -> sql.Composable:
    """A stream's `where`, of which the parts mean to Postgres what they mean to the stream."""
    match predicate:
        case Not(part):
            return sql.SQL("(NOT {})").format(fulfils(part))
        case And(parts):
            return sql.SQL("({})").format(sql.SQL(" AND ").join(map(fulfils, parts)))
        case Or(parts):
            return sql.SQL("({})").format(sql.SQL(" OR ").join(map(fulfils, parts)))
        case IsNull(column):
            return sql.SQL("({} IS NOT DISTINCT FROM NULL)").format(sql.Identifier(column))
        case Like(column, pattern, ignores_case):
            operator = sql.SQL("ILIKE" if ignores_case else "LIKE")
            return sql.SQL("({} {} {})").format(
                sql.Identifier(column), operator, sql.Literal(pattern)
            )
        case Comparison(column, operator, literal):
            return sql.SQL("({} {} {})").format(
                sql.Identifier(column), sql.SQL(operator.value), sql.Literal(literal)
            )


def _between(value: sql.Composable, bounds: Bounds, first: int, last: int) -> sql.Composable:
    low, high = bounds.ends(first)[0], bounds.ends(last)[1]
    tests = [
        sql.SQL("{} {} {}").format(value, sql.SQL(test), sql.Literal(end))
        for test, end in ((">=", low), ("<", high))
        if end is not None
    ]
    return sql.SQL("({})").format(sql.SQL(" AND ").join(tests))


def _ranged(column: ComparedColumn, bounds: Bounds) -> sql.Composable:
    """The first key column, in the form in which it is compared with bounds."""
    if bounds.are_numbers:
        # Compared as what it is, an index on it can be used.
        return sql.Identifier(column.name)
    return sql.SQL('({}) COLLATE "C"').format(text(column))


def _chain(columns: Sequence[ComparedColumn], *, is_hexed: bool) -> sql.Composable:
    result: sql.Composable = sql.SQL("{}::bigint").format(sql.Literal(SEED))
    for column in columns:
        value: sql.Composable = text(column)
        if is_hexed:
            value = sql.SQL("encode(textsend({}), 'hex')").format(value)
        if column.is_nullable:
            value = sql.SQL("CASE WHEN {} THEN {} ELSE '' END").format(_is_there(column), value)
            result = sql.SQL("{} # CASE WHEN {} THEN 0 ELSE 1 END::bigint").format(
                result, _is_there(column)
            )
        result = sql.SQL('hashtextextended(({}) COLLATE "C", {})').format(value, result)
    return result


def _is_there(column: ComparedColumn) -> sql.Composed:
    # IS NOT NULL would be false for a composite value with a NULL in it.
    return sql.SQL("{} IS DISTINCT FROM NULL").format(sql.Identifier(column.name))
