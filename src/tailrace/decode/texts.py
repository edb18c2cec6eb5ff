"""Values as Postgres sent them: bytes picked out of the frames into Arrow arrays, by the column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.decode.tuples import TEXT, Cells


def gather(data: NDArray[np.uint8], cells: Cells) -> pa.BinaryArray:
    """The bytes of each cell, NULL where it has none.

    The frame buffer itself is dressed up as an array in which every second element is a value and
    the others are what lies between two values; `take` then copies the values together in one
    native pass. This needs cells that follow each other in the buffer, as those of successive
    frames do.
    """
    count = len(cells.start)
    borders = np.empty(2 * count, dtype=np.int32)
    borders[0::2] = cells.start
    np.add(cells.start, cells.length, out=borders[1::2], casting="same_kind")
    spans = binary_array(borders, data)
    values = spans.take(pa.array(np.arange(0, 2 * count, 2)))
    return with_validity(values, cells.kind == TEXT)


def binary_array(offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> pa.BinaryArray:
    """An array over these buffers, without copying them."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def with_validity(values: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    """The same array of one values buffer, or of offsets and values, NULL where not `valid`."""
    if valid.all():
        return values
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bitmap, *values.buffers()[1:]])


def text_bytes(values: pa.BinaryArray) -> NDArray[np.uint8]:
    """The bytes of all values, one after the other, without those between or around them."""
    _, offsets, data = values.buffers()
    if data is None:
        return np.empty(0, dtype=np.uint8)
    bounds = np.frombuffer(offsets, dtype=np.int32)
    first, last = bounds[values.offset], bounds[values.offset + len(values)]
    return np.frombuffer(data, dtype=np.uint8)[first:last]


def as_strings(values: pa.BinaryArray) -> pa.StringArray:
    """The same bytes as text; only for bytes known to be ASCII."""
    return pa.Array.from_buffers(
        pa.string(), len(values), values.buffers(), values.null_count, values.offset
    )
