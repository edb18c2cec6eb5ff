r"""`bytea` in Postgres' hex format, `\x` and two digits for each byte, to binary.

Invariant: a value comes out as the very bytes, or as NULL if it is of another form. Small values
are read as one run of digits; large ones in slices, so that beside a value of any size there is
only room for its bytes.
"""

from __future__ import annotations

from binascii import unhexlify
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.decode.arrays import with_validity
from tailrace.postgres.binaries import Array, pick, text_bytes, text_offsets

_BYTEA: Final = r"^\\x([0-9a-f]{2})*$"
_LARGE_DIGITS: Final = 1 << 14
_SLICE_DIGITS: Final = 1 << 20


def to_binary(texts: Array) -> Array:
    """The bytes of each value."""
    data, offsets = text_bytes(texts), text_offsets(texts)
    start, end = offsets[:-1], offsets[1:]
    plain = texts.is_valid().to_numpy(zero_copy_only=False)
    plain &= _has_prefix(data, start, end)
    try:
        return _octets(data, start, end, plain)
    except ValueError:
        plain &= pc.match_substring_regex(texts, _BYTEA).fill_null(False).to_numpy(False)
        return _octets(data, start, end, plain)


def _has_prefix(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.bool_]:
    paired: NDArray[np.bool_] = (end - start >= 2) & ((end - start) % 2 == 0)
    at = start[paired]
    paired[paired] = (data[at] == ord("\\")) & (data[at + 1] == ord("x"))
    return paired


def _octets(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    plain: NDArray[np.bool_],
) -> Array:
    """The bytes of the values that are `plain`; ValueError if one of these is none."""
    first = np.where(plain, start + 2, end)
    offsets = np.zeros(len(start) + 1, dtype=np.int32)
    np.cumsum((end - first) // 2, out=offsets[1:])
    if 2 * int(offsets[-1]) > _LARGE_DIGITS * len(start):
        octets = _by_slices(data, first, end, int(offsets[-1]))
    else:
        octets = np.frombuffer(unhexlify(text_bytes(pick(data, first, end)).data), np.uint8)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(octets.data)]
    return with_validity(pa.Array.from_buffers(pa.binary(), len(start), buffers), plain)


def _by_slices(
    data: NDArray[np.uint8], first: NDArray[np.int64], end: NDArray[np.int64], size: int
) -> NDArray[np.uint8]:
    octets = np.empty(size, dtype=np.uint8)
    done = 0
    for begin, stop in zip(first.tolist(), end.tolist(), strict=True):
        for at in range(begin, stop, _SLICE_DIGITS):
            part = unhexlify(data[at : min(at + _SLICE_DIGITS, stop)].data)
            octets[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
    return octets
