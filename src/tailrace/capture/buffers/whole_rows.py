"""Rows that were buffered whole, as one text each, taken apart into the columns of their shape.

Few rows are: those that did not fit the buffer's columns when they were written, and those of very
wide tables. So this goes row by row.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.buffers.buffered import BufferedRows
from tailrace.capture.buffers.layout import BufferLayout
from tailrace.control.shapes import BufferShape
from tailrace.errors import SegmentCorrupt
from tailrace.postgres.row_text import split_row

_SIDES = ("new", "old")


def taken_apart(
    rows: BufferedRows, at: NDArray[np.intp], shape: BufferShape
) -> tuple[BufferedRows, BufferShape]:
    """The same rows, of which only those `at` count, and a shape by which they have columns."""
    names = [str(number) for number in range(len(shape.relation.columns))]
    sides = [f"{side}_{name}" for side in _SIDES for name in names]
    layout = BufferLayout(rows.layout.table_oid, {side: n for n, side in enumerate(sides)})
    pieces: list[bytes] = []
    for row in at.tolist():
        for side in _SIDES:
            pieces += _cells(rows.text(f"{side}_row", row), shape)
    ends = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces))) + len(rows.data)
    table = ends.reshape(len(at), len(sides))
    bounds = np.zeros((len(sides) + 1, len(rows)), dtype=np.int64)
    bounds[1:, at] = table.T
    bounds[0, at] = np.concatenate([[len(rows.data)], table[:-1, -1]])
    data = np.concatenate([rows.data, np.frombuffer(b"".join(pieces), np.uint8)])
    return (
        BufferedRows(data, list(bounds), rows.own, layout),
        replace(shape, slots=tuple(names), row=None),
    )


def _cells(text: bytes | None, shape: BufferShape) -> list[bytes]:
    """One row's columns as a frame has them; of a row that is not there, NULLs."""
    if text is None:
        return [b"n"] * len(shape.relation.columns)
    fields = split_row(text)
    if shape.row is None or len(fields) != len(shape.row):
        raise SegmentCorrupt("a row that was buffered whole does not have the fields of its form")
    values = (fields[place] for place in shape.fields)
    return [b"n" if v is None else b"t" + struct.pack(">I", len(v)) + v for v in values]
