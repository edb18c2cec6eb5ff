"""Rows of the source by their keys, decoded as a base is."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.decode import TableChanges, change_schema, decode_base
from tailrace.model import Lsn, Op, Relation
from tailrace.model.change import OP
from tailrace.postgres.session import Connection, source_error
from tailrace.spark.selection import Selection
from tailrace.verify import expressions
from tailrace.verify.difference import Found
from tailrace.verify.shape import ComparedColumn, Row, Shape
from tailrace.verify.source import SourceTable

_SPECIAL: Final = re.compile(rb"[\\\t\n\r]")
_ESCAPES: Final = {b"\\": rb"\\", b"\t": rb"\t", b"\n": rb"\n", b"\r": rb"\r"}


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys to repair; without their rows they are only taken away."""

    texts: tuple[Row, ...]
    with_rows: bool


def passes(found: Sequence[Found]) -> Iterator[Keys]:
    """The keys of these differences. A key that the lake has too often has to go first, since all
    of its rows would be set to what the source has.
    """
    too_often = tuple(dict.fromkeys(f.key for f in found if f.difference.source is None))
    if too_often:
        yield Keys(too_often, with_rows=False)
    yield Keys(tuple(dict.fromkeys(f.key for f in found)), with_rows=True)


def repair_input(
    connection: Connection,
    table: SourceTable,
    shape: Shape,
    relation: Relation,
    keys: Sequence[Row],
    *,
    position: Lsn,
    selection: Selection,
    with_rows: bool,
) -> TableChanges:
    """A delete for each key, then, `with_rows`, an insert for each that the source has, as of the
    session.
    """
    narrowed = selection.narrow(relation)
    # A key alone says nothing about a stream's `where`.
    every_row = Selection(columns=narrowed.column_names)
    deletes = _decoded(_key_lines(relation, shape, keys), relation, position, every_row)
    lines = _fetch(connection, table, shape, relation, keys) if with_rows else []
    inserts = _decoded(lines, relation, position, selection)
    ops = pa.array([Op.DELETE.value] * deletes.num_rows, pa.string())
    marked = deletes.set_column(deletes.column_names.index(OP), OP, ops)
    return TableChanges(narrowed, pa.concat_tables([marked, inserts]))


def _decoded(
    lines: Sequence[bytes], relation: Relation, position: Lsn, selection: Selection
) -> pa.Table:
    texts = pa.array(lines, pa.binary())
    pieces = decode_base(
        texts, relation, position=position, taken_ts_us=0, columns=selection.read_columns
    )
    tables = [selection.apply(piece).rows for piece in pieces]
    empty = change_schema(selection.narrow(relation)).empty_table()
    return pa.concat_tables([empty, *tables])


def _key_lines(relation: Relation, shape: Shape, keys: Sequence[Row]) -> list[bytes]:
    """Keys as lines of COPY, with NULL for everything else."""
    places = {column.name: place for place, column in enumerate(shape.key)}
    lines = []
    for key in keys:
        cells = [
            _escaped(shape.key[places[name]], key[places[name]]) if name in places else rb"\N"
            for name in relation.column_names
        ]
        lines.append(b"\t".join(cells))
    return lines


def _escaped(column: ComparedColumn, text: bytes | None) -> bytes:
    if text is None:
        return rb"\N"
    if column.is_float:
        (value,) = struct.unpack(">f" if len(text) == 8 else ">d", bytes.fromhex(text.decode()))
        return repr(value).replace("inf", "Infinity").replace("nan", "NaN").encode()
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _fetch(
    connection: Connection,
    table: SourceTable,
    shape: Shape,
    relation: Relation,
    keys: Sequence[Row],
) -> list[bytes]:
    """The rows of these keys as lines of COPY, without their newlines."""
    texts = [sql.Literal([key[place] for key in keys]) for place in range(len(shape.key))]
    query = sql.SQL(
        "COPY (SELECT {columns} FROM {rows} WHERE {indexed} AND ({key}) IN"
        " (SELECT * FROM unnest({texts}))) TO STDOUT"
    ).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, relation.column_names)),
        rows=table.rows,
        indexed=_indexed(shape.key[0], keys),
        key=sql.SQL(", ").join(expressions.exact_text(column) for column in shape.key),
        texts=sql.SQL(", ").join(sql.SQL("{}::bytea[]").format(each) for each in texts),
    )
    try:
        with connection.cursor().copy(query) as copy:
            return [bytes(line).removesuffix(b"\n") for line in copy]
    except psycopg.Error as error:
        raise source_error(error) from error


def _indexed(column: ComparedColumn, keys: Sequence[Row]) -> sql.Composable:
    """A test of the first key column that an index can serve, if it is a number."""
    if not column.is_integer:
        return sql.SQL("true")
    numbers = sorted({int(key[0] or 0) for key in keys})
    return sql.SQL("{} = ANY ({}::bigint[])").format(
        sql.Identifier(column.name), sql.Literal(numbers)
    )
