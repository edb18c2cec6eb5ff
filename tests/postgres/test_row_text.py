"""The text of a row is taken apart into the values it was made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from tailrace.errors import SegmentCorrupt
from tailrace.postgres.row_text import split_row
from tailrace.postgres.session import Connection

FIELDS = st.lists(st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")))


def _row_text(fields: list[str | None]) -> bytes:
    """As record_out writes it, but with every field in quotes that has one character or more."""

    def field(value: str | None) -> str:
        if value is None:
            return ""
        return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'

    return f"({','.join(map(field, fields))})".encode()


@given(FIELDS.filter(lambda fields: len(fields) > 1))
def test_a_row_comes_apart_into_its_fields(fields: list[str | None]) -> None:
    expected = [None if field is None else field.encode() for field in fields]
    assert split_row(_row_text(fields)) == expected


def test_what_postgres_writes_is_read(admin: Connection) -> None:
    values = ["plain", "", None, " ", 'a "b"', "back\\slash", "(,)", "line\nfeed", "é😀", "null"]
    listed = sql.SQL(", ").join(map(sql.Literal, values))
    row = admin.execute(sql.SQL("SELECT ROW({}, 1.50, true)::text").format(listed)).fetchone()
    assert row is not None
    expected = [None if value is None else value.encode() for value in values]
    assert split_row(row[0].encode()) == [*expected, b"1.50", b"t"]


def test_a_row_without_columns_or_with_one_null(admin: Connection) -> None:
    assert split_row(b"()") == []
    assert split_row(b"(,)") == [None, None]


@pytest.mark.parametrize("text", [b"", b"(", b"1,2", b"(1", b'("1)', b"(1)2", b'(1"2)', b"(1))"])
def test_what_is_no_row_is_refused(text: bytes) -> None:
    with pytest.raises(SegmentCorrupt):
        split_row(text)
