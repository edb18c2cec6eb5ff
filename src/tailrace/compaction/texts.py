r"""Rows as texts, and texts as lines of a base.

Invariant: a value that goes from a tuple or a line into a row of texts and from there into a line
is the same bytes again. Bytes that are not UTF-8, of a database of encoding SQL_ASCII, are NULL in
their column and kept in `_text` as `\x` and hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.model import PgType, Relation
from tailrace.model.change import TEXT

Array: TypeAlias = "pa.Array[Any]"

_NULL: Final = pa.scalar(b"\\N")
_TAB: Final = pa.scalar(b"\t")
# The backslash first: the others are written with one.
_ESCAPES: Final = [(b"\\", b"\\\\")] + [
    (char.encode(), b"\\" + letter.encode())
    for char, letter in zip("\b\f\n\r\t\v", "bfnrtv", strict=True)
]
_HEX: Final = "\\x"


def as_texts(relation: Relation) -> Relation:
    """The same table, all of whose columns are text."""
    columns = tuple(replace(each, type_oid=PgType.TEXT, typmod=-1) for each in relation.columns)
    return replace(relation, columns=columns, type_names=())


def to_lines(rows: pa.Table, columns: Sequence[str]) -> pa.BinaryArray:
    """One line for each row of texts."""
    exact = _not_utf8(rows)
    cells = [_cell(_patched(rows, name, exact)) for name in columns]
    if not cells:
        return pa.array([b""] * rows.num_rows, pa.binary())
    return _joined(*cells)


def widened(lines: pa.BinaryArray, added: int) -> pa.BinaryArray:
    """The lines with so many NULLs at their end."""
    if not added:
        return lines
    return widened(_joined(lines, _NULL), added - 1)


def _joined(*cells: Array | pa.BinaryScalar) -> pa.BinaryArray:
    lines = pc.call_function("binary_join_element_wise", [*cells, _TAB])
    assert isinstance(lines, pa.BinaryArray)
    return lines


def _not_utf8(rows: pa.Table) -> dict[str, dict[int, bytes]]:
    """By column and row, the bytes that are not in the column itself."""
    found: dict[str, dict[int, bytes]] = {}
    texts = rows.column(TEXT)
    for row in np.flatnonzero(texts.is_valid().to_numpy()).tolist():
        for name, text in texts[row].as_py():
            found.setdefault(name, {})[row] = bytes.fromhex(text.removeprefix(_HEX))
    return found


def _patched(rows: pa.Table, name: str, exact: dict[str, dict[int, bytes]]) -> Array:
    values = rows.column(name).combine_chunks().cast(pa.binary())
    if name not in exact:
        return values
    patched = values.to_pylist()
    for row, data in exact[name].items():
        patched[row] = data
    return pa.array(patched, pa.binary())


def _cell(values: Array) -> Array:
    for char, escape in _needed(values):
        values = pc.replace_substring(values, pattern=char, replacement=escape)
    return values.fill_null(_NULL)


def _needed(values: Array) -> Iterator[tuple[bytes, bytes]]:
    """The escapes of bytes that occur: most columns have none."""
    data = values.buffers()[2]
    present = np.zeros(256, dtype=np.bool_)
    if data is not None:
        present[np.frombuffer(memoryview(data), dtype=np.uint8)] = True
    return ((char, escape) for char, escape in _ESCAPES if present[char[0]])
