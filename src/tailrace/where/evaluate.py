"""Whether rows fulfil a predicate: true, false or unknown, as Postgres would say.

A comparison is exact or it is refused. Numbers, dates and times are ordered; texts are only equal
or not, because their order is that of a collation. Values that an Arrow column cannot hold (NaN,
infinity, a date before our era) are compared by their text, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.model import Relation
from tailrace.where.compare import comparison
from tailrace.where.predicate import And, Comparison, IsNull, Like, Not, Operator, Or, Predicate
from tailrace.where.rows import Array, RowValues, mask_of

_HOLDS: Final[dict[Operator, Callable[[NDArray[np.int8]], NDArray[np.bool_]]]] = {
    Operator.EQUAL: lambda sign: sign == 0,
    Operator.UNEQUAL: lambda sign: sign != 0,
    Operator.LESS: lambda sign: sign < 0,
    Operator.LESS_EQUAL: lambda sign: sign <= 0,
    Operator.GREATER: lambda sign: sign > 0,
    Operator.GREATER_EQUAL: lambda sign: sign >= 0,
}


def is_true(predicate: Predicate, relation: Relation, rows: RowValues) -> NDArray[np.bool_]:
    """The rows of which the predicate is true; raises SchemaError if it does not fit the table."""
    return mask_of(evaluate(predicate, relation, rows))


def evaluate(predicate: Predicate, relation: Relation, rows: RowValues) -> Array:
    """True, false or NULL for each row."""
    match predicate:
        case Not(part):
            return pc.invert(evaluate(part, relation, rows))
        case And(parts):
            found = [evaluate(part, relation, rows) for part in parts]
            return _joined(pc.and_kleene, found)
        case Or(parts):
            found = [evaluate(part, relation, rows) for part in parts]
            return _joined(pc.or_kleene, found)
        case IsNull(column):
            absent = np.asarray(rows.columns[column].is_null(), dtype=np.bool_)
            absent[list(rows.texts.get(column, ()))] = False
            return pa.array(absent)
        case Comparison() | Like():
            return _compared(predicate, relation, rows)


def _joined(join: Callable[[Array, Array], Array], parts: list[Array]) -> Array:
    found = parts[0]
    for part in parts[1:]:
        found = join(found, part)
    return found


def _compared(predicate: Comparison | Like, relation: Relation, rows: RowValues) -> Array:
    values = rows.columns[predicate.column]
    texts = rows.texts.get(predicate.column, {})
    compare = comparison(predicate, relation)
    sign = compare.signs(values)
    unknown = np.asarray(values.is_null(), dtype=np.bool_)
    for row, text in texts.items():
        sign[row], unknown[row] = compare.sign_of(text), False
    operator = predicate.operator if isinstance(predicate, Comparison) else Operator.EQUAL
    return pa.array(_HOLDS[operator](sign), mask=unknown)
