"""What a replay delivers of the rows and columns: what its stream does, of one key if that is asked
for.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, InvalidOperation

import pyarrow as pa

from tailrace.decode.types import arrow_type
from tailrace.errors import ConfigError
from tailrace.model import Relation
from tailrace.spark.selection import Selection
from tailrace.streams.replay.request import Request
from tailrace.where.predicate import And, Comparison, Literal, Operator, Predicate


def choose(request: Request, selection: Selection, shapes: list[Relation]) -> Selection:
    """The stream's selection, and the request's key among the tables of these shapes; raises
    ConfigError.
    """
    if not request.key:
        return selection
    if len(shapes) != 1:
        raise ConfigError(
            "a key is a row of one table", hint="name the table as well: --table public.orders"
        )
    parts: list[Predicate] = [_equal(shapes[0], name, text) for name, text in request.key]
    if selection.where is not None:
        parts.append(selection.where)
    return replace(selection, where=And(tuple(parts)))


def _equal(shape: Relation, name: str, text: str) -> Comparison:
    column = next((each for each in shape.columns if each.name == name), None)
    if column is None or name not in shape.key:
        raise ConfigError(
            f"{name} is not a key column of {shape.qualified}",
            hint=f"key: {', '.join(shape.key) or 'none'}",
        )
    return Comparison(name, Operator.EQUAL, _literal(text, arrow_type(shape, column), name))


def _literal(text: str, kind: pa.DataType, name: str) -> Literal:
    if pa.types.is_boolean(kind):
        return text.lower() in ("t", "true")
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind)
    if not is_number:
        return text
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ConfigError(f"key column {name} is a number, not {text!r}") from error
