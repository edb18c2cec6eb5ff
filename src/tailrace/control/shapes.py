"""In which shape each buffered row was written, so that it is read as it was meant.

A form is what the source keeps of a shape: the table as a Relation frame would describe it, and
where in the buffer the values are. A row names its shape by the number that the form has in
`tailrace.table_shapes`; one that fitted none has the form itself in that place. If there is
neither, nobody can tell what the row holds and the table needs a new base.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from tailrace.errors import SegmentCorrupt
from tailrace.model import Column, Relation, ReplicaIdentity
from tailrace.postgres.named_types import read_named_types
from tailrace.postgres.pgoutput import relation_frame
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class BufferShape:
    """How to read buffered rows of one shape.

    `relation` is the source table's. Either `slots` has one entry for each of its columns, whose
    values are in the buffer's columns `new_<slot>` and `old_<slot>`; or `row` is not None: the
    values are in the texts `new_row` and `old_row`, which have one field for each name in it (see
    `row_text.split_row`), more perhaps than the relation has columns, and in another order.
    """

    relation: Relation
    slots: tuple[str, ...]
    row: tuple[str, ...] | None

    @property
    def frame(self) -> bytes:
        """The Relation frame that Postgres would send for the table."""
        return relation_frame(self.relation)

    @property
    def fields(self) -> tuple[int, ...]:
        """For each column of the relation its place in the text of a whole row."""
        assert self.row is not None
        return tuple(self.row.index(column.name) for column in self.relation.columns)


_SHAPES: Final = """
SELECT shape, form::text FROM tailrace.table_shapes WHERE table_oid = %s::oid ORDER BY shape
"""


def read_shapes(conn: Connection, table_oid: int) -> dict[int, BufferShape]:
    """Every shape that rows in the table's buffer may have, by its number."""
    rows = conn.execute(_SHAPES, (table_oid,)).fetchall()
    return {shape: read_form(conn, table_oid, form) for shape, form in rows}


def read_form(conn: Connection, table_oid: int, form: str) -> BufferShape:
    """The shape that a form describes; types that are not built in get their names from the
    catalog. Raises SegmentCorrupt.
    """
    shape = parse_form(table_oid, form)
    types = read_named_types(conn, (column.type_oid for column in shape.relation.columns))
    named = tuple(types[oid] for oid in sorted(types))
    return replace(shape, relation=replace(shape.relation, type_names=named))


def parse_form(table_oid: int, form: str) -> BufferShape:
    """The same from the form alone."""
    try:
        value: dict[str, Any] = json.loads(form)
        relation = Relation(
            oid=table_oid,
            schema=value["schema"],
            name=value["name"],
            identity=ReplicaIdentity(value["identity"]),
            columns=tuple(_column(column) for column in value["columns"]),
            key=tuple(value["key"]),
        )
        row = tuple(value["row"]) if "row" in value else None
        return BufferShape(relation, tuple(value.get("slots", ())), row)
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"the form of table {table_oid} cannot be read") from error


def _column(value: dict[str, Any]) -> Column:
    return Column(value["name"], value["type"], value["typmod"], value["in_identity"])
