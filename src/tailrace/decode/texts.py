"""Values as Postgres sent them: bytes picked out of the frames into Arrow arrays, by the column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.decode.tuples import TEXT, Cells


def gather(data: NDArray[np.uint8], cells: Cells) -> pa.BinaryArray:
    """The bytes of each cell, NULL where it has none."""
    values = pick(data, cells.start, cells.start + cells.length)
    return with_validity(values, cells.kind == TEXT)


def pick(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> pa.BinaryArray:
    """The bytes from each `start` to its `end`, all of which follow each other in `data`.

    The buffer itself is dressed up as an array in which every second element is a value and the
    others are what lies between two values; `take` then copies the values together in one native
    pass. Collecting the bytes by an index of each costs ten times as much.
    """
    borders = np.empty(2 * len(start), dtype=np.int32)
    borders[0::2] = start
    borders[1::2] = end
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(data)]
    spans = pa.Array.from_buffers(pa.binary(), len(borders) - 1, buffers)
    return spans.take(pa.array(np.arange(0, len(borders), 2)))


def with_validity(values: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    """The same array of one values buffer, or of offsets and values, NULL where not `valid`."""
    if valid.all():
        return values
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bitmap, *values.buffers()[1:]])


def text_offsets(values: pa.BinaryArray) -> NDArray[np.int32]:
    """Where each value starts among the bytes of its buffer, and where the last one ends."""
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def text_bytes(values: pa.BinaryArray) -> NDArray[np.uint8]:
    """The bytes of all values, one after the other."""
    offsets = text_offsets(values)
    return np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]


def as_strings(values: pa.BinaryArray) -> pa.StringArray:
    """The same bytes as text; only for bytes known to be ASCII."""
    return pa.Array.from_buffers(
        pa.string(), len(values), values.buffers(), values.null_count, values.offset
    )
