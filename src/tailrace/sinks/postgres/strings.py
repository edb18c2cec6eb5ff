"""Arrays of text joined row by row, in native code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.postgres.binaries import Array

STRING: Final = pa.large_string()
"""With 64-bit offsets: a batch of texts may be larger than 2 GB."""


def join(parts: Sequence[Array | str], between: str = "") -> Array:
    """Row by row, the parts with a text between two; NULL where one is. A part that is no array is
    the same in every row.
    """
    values: list[Any] = [pa.scalar(p, STRING) if isinstance(p, str) else p for p in parts]
    joined: Array = pc.binary_join_element_wise(*values, pa.scalar(between, STRING))
    return joined


def joined_bytes(texts: Array) -> memoryview:
    """The bytes of all values, one after the other; of texts or bytes with 64-bit offsets."""
    offsets = offsets_of(texts)
    return memoryview(texts.buffers()[2] or b"")[offsets[0] : offsets[-1]]


def offsets_of(texts: Array) -> NDArray[np.int64]:
    """Where each value begins in its buffer, and where the last one ends."""
    places = texts.buffers()[1]
    assert places is not None
    offsets: NDArray[np.int64] = np.frombuffer(memoryview(places), np.int64)
    return offsets[texts.offset : texts.offset + len(texts) + 1]
