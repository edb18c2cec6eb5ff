"""The columns of a lake table, and whether a table that is there already can take a relation's
rows.

An upsert table has the source's columns and `_text`; an append table has all columns of a change.
The key's columns are marked in the table's own schema, so that a change of the key is noticed
whoever opens the table. Columns may be added; everything else that does not fit is refused before
anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypedDict

import pyarrow as pa
from deltalake import Schema

from tailrace.decode import arrow_schema, change_schema
from tailrace.errors import SchemaError
from tailrace.model import META_COLUMNS, Relation
from tailrace.model.change import TEXT
from tailrace.sinks.refusal import require_key, require_names

KEY_MARK: Final = "tailrace.key"
"""Metadata of a key column: its place in the key, from 0."""


class Mode(StrEnum):
    """What a lake table holds: the source's rows as they are, or every change to them."""

    UPSERT = "upsert"
    APPEND = "append"


class Field(TypedDict):
    """A column as Delta's log writes it."""

    name: str
    type: str | dict[str, object]
    nullable: bool
    metadata: dict[str, object]


Fields: TypeAlias = Mapping[str, Field]
ArrowField: TypeAlias = "pa.Field[Any]"


def lake_schema(relation: Relation, mode: Mode) -> pa.Schema:
    """The table's columns; raises SchemaError if no lake table can hold this relation."""
    require_names(relation)
    changes = change_schema(relation)
    if mode is Mode.APPEND:
        return changes
    require_key(relation)
    fields = [*arrow_schema(relation), changes.field(TEXT)]
    return pa.schema([_mark(field, relation) for field in fields])


def _mark(field: ArrowField, relation: Relation) -> ArrowField:
    if field.name not in relation.key:
        return field
    return field.with_metadata({KEY_MARK: str(relation.key.index(field.name))})


def delta_fields(schema: Schema) -> dict[str, Field]:
    """The columns by name, in the table's order."""
    fields: list[Field] = json.loads(schema.to_json())["fields"]
    return {field["name"]: field for field in fields}


def lacks_columns(have: Fields, wanted: pa.Schema, relation: Relation) -> bool:
    """Whether the table has to get new columns first; raises SchemaError if that would not be
    enough.
    """
    want = delta_fields(Schema.from_arrow(wanted))
    require_same_mode(have, wanted, relation)
    dropped = next((name for name in have if name not in want), None)
    if dropped is not None:
        raise _refuse(relation, f"column {dropped} is gone from the source")
    for name in want.keys() & have.keys():
        if not _fits(have[name]["type"], want[name]["type"]):
            old, new = (json.dumps(fields[name]["type"]) for fields in (have, want))
            raise _refuse(relation, f"column {name} was {old} and is now {new}")
    if _key(have) != _key(want):
        raise _refuse(relation, f"its key was {_key(have) or 'none'} and is now {_key(want)}")
    return any(name not in have or have[name]["type"] != want[name]["type"] for name in want)


def require_same_mode(have: Fields, wanted: pa.Schema, relation: Relation) -> None:
    """Refuse a table that was made in another mode, or by something else."""
    want = wanted.names
    if {name in have for name in META_COLUMNS if name in want} != {True} or any(
        name in have for name in META_COLUMNS if name not in want
    ):
        raise SchemaError(
            f"the lake table of {relation.qualified} was made in another mode or by something else",
            hint="give the stream a lake path of its own",
        )


def _fits(have: object, want: object) -> bool:
    """Whether one type is the other, or, for structs, the other before it got new fields at its
    end.
    """
    if not (isinstance(have, dict) and isinstance(want, dict) and have.get("type") == "struct"):
        return have == want
    if want.get("type") != "struct":
        return False
    old, new = have["fields"], want["fields"]
    return len(old) <= len(new) and all(
        a["name"] == b["name"] and _fits(a["type"], b["type"])
        for a, b in zip(old, new, strict=False)
    )


def _key(fields: Fields) -> list[str]:
    marks = {name: field["metadata"].get(KEY_MARK) for name, field in fields.items()}
    return sorted(
        (name for name, mark in marks.items() if mark is not None),
        key=lambda name: str(marks[name]).zfill(4),
    )


def _refuse(relation: Relation, reason: str) -> SchemaError:
    return SchemaError(
        f"the lake table of {relation.qualified} does not fit any more: {reason}",
        hint="only new columns are taken over; deliver the table anew to another lake path, or move"
        " its directory away and deliver it from a base",
    )
