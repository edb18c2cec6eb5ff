"""Arrow arrays made of buffers: values picked out of the frames, and what is built of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.postgres.binaries import Array, pick
from tailrace.postgres.tuples import TEXT, Cells


def gather(data: NDArray[np.uint8], cells: Cells) -> Array:
    """The bytes of each cell, as binary; NULL where it has none."""
    values = pick(data, cells.start, cells.start + cells.length)
    return with_validity(values, cells.kind == TEXT)


def with_validity(values: Array, valid: NDArray[np.bool_]) -> Array:
    """The same binary array without NULLs or offset, now NULL where not `valid`."""
    if valid.all():
        return values
    return pa.Array.from_buffers(values.type, len(values), [_bitmap(valid), *values.buffers()[1:]])


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
