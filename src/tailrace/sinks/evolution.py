"""How a target has to change before it can take rows of another shape, and when it cannot.

    a new column             is added; rows that are there have NULL in it
    a wider type             the target is written anew with it; a narrower one is kept wide
    a column that is gone    stays, marked as dropped, and is NULL in every row written from then on
    anything else            is refused, because rows that are not touched any more would be wrong

Postgres adds columns at the end and never moves one, so two things give a rename away, and a column
that was dropped and made again: a new column before an old one, and old ones in another order. At
the end of the table a rename looks like a drop and an add, and is taken for that; capture sees the
difference in the catalog and asks for a new base. None of this can be wrong after a load, which
brings every row: a refused shape may pass once the table is loaded anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailrace.errors import SchemaError
from tailrace.model import Relation
from tailrace.sinks.columns import OWN_COLUMNS, ArrowField
from tailrace.sinks.shape import DROPPED_MARK, key_of, mark_of, require_same_mode, with_mark
from tailrace.sinks.widening import widest


def evolved(held: pa.Schema, wanted: pa.Schema, relation: Relation) -> pa.Schema:
    """The columns that a target with these needs for rows of `relation`, its own ones first; both
    schemas are marked. Raises SchemaError.
    """
    require_same_mode(held, wanted, relation)
    _require_key(held, relation)
    _require_no_rename(held, wanted, relation)
    fields = [_widened(field, wanted, relation) for field in held]
    return pa.schema([*fields, *(field for field in wanted if field.name not in held.names)])


def reordered(held: pa.Schema, wanted: pa.Schema, relation: Relation) -> pa.Schema:
    """The same for a load that keeps older rows: in the order of `wanted`, then what is gone."""
    require_same_mode(held, wanted, relation)
    _require_key(held, relation)
    fields = [
        with_mark(_widened(held.field(field.name), wanted, relation), DROPPED_MARK, None)
        if field.name in held.names
        else field
        for field in wanted
    ]
    gone = [_widened(field, wanted, relation) for field in held if field.name not in wanted.names]
    return pa.schema([*fields, *gone])


def _widened(field: ArrowField, wanted: pa.Schema, relation: Relation) -> ArrowField:
    if field.name not in wanted.names:
        return with_mark(field, DROPPED_MARK, "true")
    new = wanted.field(field.name).type
    kind = widest(field.type, new)
    if kind is None:
        raise refuse_shape(relation, f"column {field.name} was {field.type} and is now {new}")
    return field.with_type(kind)


def _require_key(held: pa.Schema, relation: Relation) -> None:
    old = key_of(held)
    # In any order: a Relation frame alone says only which columns are the key's.
    if old and {*old} != {*relation.key}:
        now = ", ".join(relation.key) or "none"
        raise refuse_shape(relation, f"its key was {', '.join(old)} and is now {now}")


def _require_no_rename(held: pa.Schema, wanted: pa.Schema, relation: Relation) -> None:
    old, new = (_source_columns(schema) for schema in (held, wanted))
    both = [name for name in new if name in old]
    if both != [name for name in old if name in new]:
        raise refuse_shape(
            relation, "its columns come in another order: one was dropped and made again"
        )
    again = next((name for name in both if mark_of(held.field(name), DROPPED_MARK)), None)
    if again is not None:
        raise refuse_shape(relation, f"column {again} was dropped and made again")
    added = _behind(both, new)
    early = next((name for name in new if name not in [*old, *added]), None)
    if early is not None:
        raise refuse_shape(relation, f"column {early} stands where another one was: a rename")


def _source_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in OWN_COLUMNS]


def _behind(both: Sequence[str], names: list[str]) -> list[str]:
    """The names that come after the last one that both have."""
    return names[names.index(both[-1]) + 1 :] if both else names


def refuse_shape(relation: Relation, reason: str) -> SchemaError:
    """The error of a shape that its target cannot take; it may pass once the table is loaded."""
    command = f"`tailrace snapshot {relation.qualified}`"
    return SchemaError(
        f"the target of {relation.qualified} does not fit any more: {reason}; it waits for a new"
        f" base ({command})",
        hint=f"{command} delivers the table anew in its new shape; a target that keeps older rows"
        " has to be moved away first if a type or the key changed",
        retry=True,
    )
