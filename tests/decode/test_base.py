"""A row is the same, whether it comes from a base or from the stream."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from tailrace.decode import change_schema, decode, decode_base
from tailrace.decode import decoder as decoder_module
from tailrace.errors import SegmentCorrupt
from tailrace.model import META_COLUMNS, ORIGIN, Lsn, Offset, Relation
from tailrace.postgres.frames import Frames
from tests.decode import wire
from tests.decode.copy_text import copy_lines
from tests.decode.slot import Slot
from tests.decode.streams import CELLS, UNTIMED, Draw, relations
from tests.decode.test_against_reference import comparable
from tests.log.making import shape
from tests.server import Database

END = Offset.whole(1 << 62)
POSITION = Lsn(0x2000)
TAKEN_TS_US = 1_800_000_000_000_000


def _from_base(
    relation: Relation, lines: pa.BinaryArray, *, columns: Sequence[str] | None = None
) -> pa.Table:
    pieces = decode_base(
        lines, relation, position=POSITION, taken_ts_us=TAKEN_TS_US, columns=columns
    )
    tables = [each.rows for each in pieces]
    return pa.concat_tables(tables) if tables else change_schema(relation, columns).empty_table()


def _from_stream(
    relation: Relation, rows: Sequence[wire.Row], *, columns: Sequence[str] | None = None
) -> pa.Table:
    frames = [wire.begin(), *(wire.insert(relation.oid, row) for row in rows), wire.commit(100)]
    (found,) = decode(
        Frames.of(frames),
        initial={relation.oid: relation},
        versions={},
        after=ORIGIN,
        upto=END,
        columns=columns,
    )
    return found.rows


@st.composite
def _tables(draw: Draw) -> tuple[Relation, list[list[wire.Cell]]]:
    relation = draw(relations(16_400, "item"))
    row = st.tuples(*(CELLS[column.type_oid, column.typmod] for column in relation.columns))
    rows = draw(st.lists(row.map(list), min_size=1, max_size=8))
    return relation, [[None if cell is wire.UNSENT else cell for cell in row] for row in rows]


@pytest.mark.slow
@UNTIMED
@given(
    _tables(),
    st.sampled_from(["_PIECE_ROWS_MAX", "_PIECE_CELLS_MAX", "_PIECE_BYTES_MAX"]),
    st.sampled_from([1, 4, 100, 1 << 16]),
)
def test_f063_row_of_a_base_equals_the_same_row_of_the_stream(
    table: tuple[Relation, list[list[wire.Cell]]], limit: str, limit_value: int
) -> None:
    relation, rows = table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, limit, limit_value)
        base = _from_base(relation, copy_lines(rows))
    base.validate(full=True)
    own = [*relation.column_names, "_text"]
    streamed = _from_stream(relation, rows).select(own).to_pylist()
    assert list(map(comparable, base.select(own).to_pylist())) == list(map(comparable, streamed))
    assert base.schema == change_schema(relation)


def test_rows_of_a_base_are_inserts_at_its_position() -> None:
    relation = shape(16_400, "id", "note")
    lines = copy_lines([["1", "a"], ["2", None]])
    (piece,) = decode_base(
        lines, relation, position=POSITION, taken_ts_us=TAKEN_TS_US, first_ordinal=7
    )
    assert piece.relation is relation
    meta = piece.rows.select(META_COLUMNS).to_pylist()
    assert [row["_ordinal"] for row in meta] == [7, 8]
    for row in meta:
        assert (row["_op"], row["_origin"]) == ("insert", "snapshot")
        assert (row["_commit_lsn"], row["_xid"]) == (POSITION, 0)
        assert row["_commit_ts"].timestamp() * 1e6 == TAKEN_TS_US
        assert (row["_unchanged"], row["_before"], row["_text"]) == (None, None, None)


def test_only_the_asked_columns_are_read() -> None:
    relation = shape(16_400, "id", "note", "more")
    lines = copy_lines([["1", "a\tb", "x"], ["2", "\\", None]])
    rows = _from_base(relation, lines, columns=["note"])
    assert rows.schema == change_schema(relation, ["note"])
    assert rows["note"].to_pylist() == ["a\tb", "\\"]


def test_slice_of_a_part_is_read_alone() -> None:
    relation = shape(16_400, "id", "note")
    lines = copy_lines([[str(number), "\\" * number] for number in range(9)])
    rows = _from_base(relation, lines[3:6])
    assert rows["note"].to_pylist() == ["\\" * number for number in (3, 4, 5)]


def test_base_without_rows_gives_nothing() -> None:
    assert not _from_base(shape(16_400, "id"), pa.array([], pa.binary())).num_rows


@pytest.mark.parametrize("line", [b"1", b"1\ta\tb", b"1\ta\\"])
def test_damaged_line_is_told(line: bytes) -> None:
    lines = pa.array([b"0\tz", line], pa.binary())
    with pytest.raises(SegmentCorrupt, match="row of a base"):
        _from_base(shape(16_400, "id", "note"), lines)


VALUES = {
    "int8": ["0", "-9223372036854775808"],
    "numeric(12,2)": ["1.50", "NaN", "-0.01"],
    "numeric": ["1e130000", "-Infinity", "0.10"],
    "float8": ["0.1", "NaN", "-Infinity", "1e-300"],
    "bool": ["true", "false"],
    "text": ["", "\\N", "\\", "a\tb\nc\rd\be\ff\vg", "\x01\x1f\x7f", "é😀", "\\.", " x "],
    "char(5)": ["ab"],
    "bytea": ["\\x", "\\x00ff5c09", "\\xdeadbeef"],
    "date": ["2024-02-29", "infinity", "0044-03-15 BC", "5874897-12-31"],
    "timestamptz": ["2024-02-29 12:00:00.5+05:30", "-infinity", "294276-12-31 23:59:59+00"],
    "time": ["24:00:00"],
    "interval": ["1 mon -3 days 04:05:06.7"],
    "int4[]": ["{1,NULL,3}", "[2:3]={4,5}"],
    "text[]": ['{"a\tb","c\\\\d",NULL,""}'],
    "jsonb": ['{"a": "\\\\ \\t", "b": null}'],
    "int4range": ["[1,5)", "empty"],
}


def test_f063_copy_and_stream_of_postgres_give_equal_rows(database: Database) -> None:
    with database.connect() as connection:
        slot = Slot.create(connection)
        for number, (kind, texts) in enumerate(VALUES.items()):
            table = sql.Identifier(f"t{number}")
            connection.execute(
                sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, v {})").format(table, sql.SQL(kind))
            )
            for key, text in enumerate([*texts, None]):
                insert = sql.SQL("INSERT INTO {} VALUES (%s, %s::text::{})")
                connection.execute(insert.format(table, sql.SQL(kind)), [key, text])
        streamed = {each.relation.name: each for each in slot.changes()}
        for number in range(len(VALUES)):
            changes = streamed[f"t{number}"]
            lines = _copied(connection, f"t{number}")
            own = ["id", "v", "_text"]
            base = _from_base(changes.relation, lines).select(own).to_pylist()
            expected = changes.rows.select(own).to_pylist()
            assert list(map(comparable, base)) == list(map(comparable, expected))


def _copied(connection: psycopg.Connection, table: str) -> pa.BinaryArray:
    query = sql.SQL("COPY (SELECT * FROM {} ORDER BY id) TO STDOUT").format(sql.Identifier(table))
    with connection.cursor().copy(query) as copy:
        data = b"".join(bytes(part) for part in copy)
    return pa.array(data.split(b"\n")[:-1], pa.binary())


def test_table_without_columns_has_rows() -> None:
    relation = Relation(16_400, "public", "none", shape().identity, ())
    assert _from_base(relation, pa.array([b"", b""], pa.binary())).num_rows == 2
