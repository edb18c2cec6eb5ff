"""Binary Arrow arrays and the buffers that they are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array: TypeAlias = "pa.Array[Any]"
"""An Arrow array whose type is known only when it runs."""


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
