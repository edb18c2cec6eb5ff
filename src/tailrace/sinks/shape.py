"""The columns of a target that keeps rows, and what its own schema says about them.

The key's columns are marked there, so that a change of the key is noticed whoever opens the target;
so are columns that the source has dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tailrace.decode import arrow_schema, change_schema
from tailrace.errors import SchemaError
from tailrace.model import Relation
from tailrace.model.change import TEXT
from tailrace.sinks.columns import OWN_COLUMNS, ArrowField
from tailrace.sinks.refusal import require_key, require_names

KEY_MARK: Final = "tailrace.key"
"""Metadata of a key column: its place in the key, from 0."""

DROPPED_MARK: Final = "tailrace.dropped"
"""Metadata of a column that the source has no more."""

GENERATION_MARK: Final = "tailrace.generation"
"""Metadata of `_text`: a number that is new whenever the target is made anew."""


def row_schema(relation: Relation, *, extra: Sequence[ArrowField] = ()) -> pa.Schema:
    """The source's columns, `_text`, and more; raises SchemaError if rows cannot be told apart."""
    require_names(relation, also=[field.name for field in extra])
    require_key(relation)
    own = [_mark(field, relation) for field in arrow_schema(relation)]
    return pa.schema([*own, change_schema(relation).field(TEXT), *extra])


def renewed(schema: pa.Schema, generation: int) -> pa.Schema:
    """The schema of a target that is made anew.

    The embedded Delta library takes over a new order of columns only if something else about them
    is new as well; with this mark something always is.
    """
    at = schema.names.index(TEXT)
    return schema.set(at, with_mark(schema.field(at), GENERATION_MARK, str(generation)))


def _mark(field: ArrowField, relation: Relation) -> ArrowField:
    if field.name not in relation.key:
        return field
    return with_mark(field, KEY_MARK, str(relation.key.index(field.name)))


def require_same_mode(held: pa.Schema, wanted: pa.Schema, relation: Relation) -> None:
    """Refuse a target that was made in another mode, or by something else."""
    if OWN_COLUMNS.intersection(held.names) != OWN_COLUMNS.intersection(wanted.names):
        raise SchemaError(
            f"the target of {relation.qualified} was made in another mode or by something else",
            hint="give the stream a place of its own",
        )


def key_of(schema: pa.Schema) -> list[str]:
    """The key's columns in the key's order; none if the target has no key of its own."""
    marks = {field.name: mark for field in schema if (mark := mark_of(field, KEY_MARK))}
    return sorted(marks, key=lambda name: int(marks[name]))


def mark_of(field: ArrowField, mark: str) -> str | None:
    """What the field's metadata says under this name."""
    found = (field.metadata or {}).get(mark.encode())
    return None if found is None else found.decode()


def with_mark(field: ArrowField, mark: str, value: str | None) -> ArrowField:
    """The field with this mark beside those that it has; without it, if the value is None."""
    marks: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
    marks.pop(mark.encode(), None)
    return field.with_metadata(marks if value is None else {**marks, mark: value})
