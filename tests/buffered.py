"""What triggers have put into a buffer, read as a drain would: by the shape of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from psycopg import sql

from tailrace.control.shapes import BufferShape, read_form, read_shapes
from tailrace.postgres.buffer import buffer
from tailrace.postgres.catalog import TableInfo, read_tables
from tailrace.postgres.row_text import split_row
from tailrace.postgres.session import Connection

Texts: TypeAlias = dict[str, str | None]

WHOLE: Final = 0
"""Stands for the shape of a row that fits none."""


@dataclass(frozen=True, slots=True)
class Buffered:
    """One row of a buffer; `new` and `old` are None where the change has none."""

    op: str
    depth: int
    shape: int
    key_hash: int | None
    new: Texts | None
    old: Texts | None


def table_of(conn: Connection, name: str) -> TableInfo:
    """The table as the catalog describes it now."""
    row = conn.execute("SELECT %s::regclass::oid::bigint", (name,)).fetchone()
    assert row is not None
    return read_tables(conn, [row[0]])[0]


def read_buffered(conn: Connection, table_oid: int) -> list[Buffered]:
    """All rows, in the order of their sequence."""
    shapes = read_shapes(conn, table_oid)
    query = sql.SQL("SELECT * FROM {} ORDER BY seq").format(buffer(table_oid))
    rows = []
    for texts in texts_of(conn, query):
        said = texts["shape"]
        assert said is not None
        number = int(said) if said.isdecimal() else WHOLE
        shape = shapes[number] if number else read_form(conn, table_oid, said)
        rows.append(_buffered(texts, number, shape))
    return rows


def changes(conn: Connection, table_oid: int) -> list[tuple[str, Texts | None, Texts | None]]:
    """Operation, new row and old row of each."""
    return [(row.op, row.new, row.old) for row in read_buffered(conn, table_oid)]


def _buffered(texts: Texts, number: int, shape: BufferShape) -> Buffered:
    op, key_hash = texts["op"], texts["key_hash"]
    assert op is not None
    return Buffered(
        op=op,
        depth=int(texts["depth"] or 0),
        shape=number,
        key_hash=None if key_hash is None else int(key_hash),
        new=_side(texts, shape, "new") if op in "IU" else None,
        old=_side(texts, shape, "old") if op in "UD" else None,
    )


def _side(texts: Texts, shape: BufferShape, side: str) -> Texts:
    names = shape.relation.column_names
    if shape.row is None:
        slots = zip(names, shape.slots, strict=True)
        return {name: texts[f"{side}_{slot}"] for name, slot in slots}
    whole = texts[f"{side}_row"]
    assert whole is not None
    fields = split_row(whole.encode())
    assert len(fields) == len(shape.row)
    places = zip(names, (fields[place] for place in shape.fields), strict=True)
    return {name: None if field is None else field.decode() for name, field in places}


def texts_of(conn: Connection, query: sql.Composed) -> list[Texts]:
    """Values as Postgres writes them, which is what the stream carries."""
    # Not prepared: the columns change between two readings.
    cursor = conn.execute(query, prepare=False)
    result, columns = cursor.pgresult, cursor.description
    assert result is not None and columns is not None

    def text(row: int, column: int) -> str | None:
        value = result.get_value(row, column)
        return None if value is None else value.decode()

    return [
        {column.name: text(row, place) for place, column in enumerate(columns)}
        for row in range(result.ntuples)
    ]
