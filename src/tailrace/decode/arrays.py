"""Arrow arrays made of buffers: values picked out of the frames, and what is built of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.decode.tuples import TEXT, Cells

Array: TypeAlias = "pa.Array[Any]"
"""An Arrow array whose type is known only when it runs."""


def gather(data: NDArray[np.uint8], cells: Cells) -> Array:
    """The bytes of each cell, as binary; NULL where it has none."""
    values = pick(data, cells.start, cells.start + cells.length)
    return with_validity(values, cells.kind == TEXT)


def pick(data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]) -> Array:
    """The bytes from each `start` to its `end`, as binary; the values must follow each other in
    `data`.

    The buffer itself is dressed up as an array in which every second element is a value and the
    others are what lies between two values; `take` then copies the values together in one native
    pass. Collecting the bytes by an index of each costs ten times as much.
    """
    borders = np.empty(2 * len(start), dtype=np.int32)
    borders[0::2] = start
    borders[1::2] = end
    buffers = [None, pa.py_buffer(borders.data), pa.py_buffer(data.data)]
    spans = pa.Array.from_buffers(pa.binary(), len(borders) - 1, buffers)
    return spans.take(np.arange(0, len(borders), 2))


def with_validity(values: Array, valid: NDArray[np.bool_]) -> Array:
    """The same binary array without NULLs or offset, now NULL where not `valid`."""
    if valid.all():
        return values
    return pa.Array.from_buffers(values.type, len(values), [_bitmap(valid), *values.buffers()[1:]])


def text_offsets(values: Array) -> NDArray[np.int64]:
    """Where each value of a binary array starts in `text_bytes`, and where the last one ends."""
    offsets = _offsets(values).astype(np.int64)
    offsets -= offsets[0]
    return offsets


def text_bytes(values: Array) -> NDArray[np.uint8]:
    """The bytes of all values of a binary array, one after the other."""
    offsets, data = _offsets(values), values.buffers()[2]
    return np.frombuffer(memoryview(data or b""), dtype=np.uint8)[offsets[0] : offsets[-1]]


def _offsets(values: Array) -> NDArray[np.int32]:
    buffer = values.buffers()[1]
    assert buffer is not None
    offsets: NDArray[np.int32] = np.frombuffer(memoryview(buffer), dtype=np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def as_strings(values: Array) -> Array:
    """The same bytes as text; only for bytes known to be ASCII."""
    return pa.Array.from_buffers(
        pa.string(), len(values), values.buffers(), values.null_count, values.offset
    )


def nested(target: pa.DataType, counts: NDArray[np.int64], children: Sequence[Array]) -> Array:
    """Lists or maps of so many elements each; NULL instead of an empty one."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    buffers: list[pa.Buffer | None] = [_bitmap(counts > 0), pa.py_buffer(offsets.data)]
    return pa.Array.from_buffers(target, len(counts), buffers, children=list(children))


def struct(target: pa.DataType, count: int, children: Sequence[Array]) -> Array:
    """Structs of these columns. `count` is for structs without any."""
    return pa.Array.from_buffers(target, count, [None], children=list(children))


def nulls(target: pa.DataType, count: int) -> Array:
    """Nothing but NULLs."""
    # Typed stubs of pyarrow know `nulls` for each type by itself, but not for any type.
    kind: Any = target
    values: Array = pa.nulls(count, kind)
    return values


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little").data)
