"""Postgres' `hashtextextended`, for whole columns of texts.

Both sides of a comparison hash a row as a chain: the hash of a column's text is the seed of the
next column's. On the server that is one C function on each value; here it is Bob Jenkins' lookup3,
as in src/common/hashfn.c (hash_bytes_extended), on arrays. Hash partitions on disk depend on it,
so it does not change between versions; a server of the other byte order is told apart by `PROBE`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.postgres.binaries import Array, text_bytes, text_offsets

Hashes: TypeAlias = NDArray[np.uint64]
Words: TypeAlias = NDArray[np.uint32]

SEED: Final = 1
"""Of a row's first column. Not 0, which the function treats in a way of its own."""

PROBE: Final = ("tailrace", -4_384_992_998_451_588_745)
"""A text, and what the server must give for it under `SEED`."""

_START: Final = 0x9E3779B9 + 3923095
_BLOCK: Final = 12
_WORD_MAX: Final = np.uint64(0xFFFFFFFF)


def _tail_masks() -> NDArray[np.uint32]:
    """For a rest of 0 to 11 bytes, what to keep of each of its three words."""
    masks = np.zeros((_BLOCK, _BLOCK), dtype=np.uint8)
    for rest in range(_BLOCK):
        masks[rest, :rest] = 0xFF
    return masks.view("<u4")


_MASKS: Final = _tail_masks()


def hash_texts(texts: Array, seeds: Hashes) -> Hashes:
    """The hash of each text under its seed; `texts` is binary and has no NULL."""
    data, offsets = _bytes_and_offsets(texts)
    start = offsets[:-1].copy()
    left = np.diff(offsets)
    a = (left + _START).astype(np.uint32)
    b, c = a.copy(), a.copy()
    a += (seeds >> np.uint64(32)).astype(np.uint32)
    b += (seeds & _WORD_MAX).astype(np.uint32)
    _mix(a, b, c)
    _add_blocks(data, start, left, (a, b, c))
    at_rest = [word & _MASKS[left, n] for n, word in enumerate(_words(data, start))]
    a += at_rest[0]
    b += at_rest[1]
    # The lowest byte of the last word is kept for the length.
    c += at_rest[2] << np.uint32(8)
    _finish(a, b, c)
    hashes: Hashes = (b.astype(np.uint64) << np.uint64(32)) | c
    return hashes


def _add_blocks(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    left: NDArray[np.int64],
    state: tuple[Words, Words, Words],
) -> None:
    """Take in the whole blocks; `start` and `left` then tell what is left of each text."""
    longer = np.flatnonzero(left >= _BLOCK)
    while len(longer):
        everywhere = len(longer) == len(left)
        a, b, c = state if everywhere else (word[longer] for word in state)
        first, second, third = _words(data, start[longer])
        a += first
        b += second
        c += third
        _mix(a, b, c)
        if not everywhere:
            for whole, part in zip(state, (a, b, c), strict=True):
                whole[longer] = part
        start[longer] += _BLOCK
        left[longer] -= _BLOCK
        longer = longer[left[longer] >= _BLOCK]


def _bytes_and_offsets(texts: Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts' bytes, with a block of zeros behind them, and where each begins."""
    content = text_bytes(texts)
    data = np.zeros(len(content) + _BLOCK, dtype=np.uint8)
    data[: len(content)] = content
    return data, text_offsets(texts)


def _words(data: NDArray[np.uint8], start: NDArray[np.int64]) -> tuple[Words, Words, Words]:
    """The three little-endian words that begin at each place, which need not be aligned."""
    at_any_byte = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
    return at_any_byte[start], at_any_byte[start + 4], at_any_byte[start + 8]


def _rotate(word: Words, bits: int) -> Words:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _mix(a: Words, b: Words, c: Words) -> None:
    for x, y, z, bits in (
        (a, c, b, 4),
        (b, a, c, 6),
        (c, b, a, 8),
        (a, c, b, 16),
        (b, a, c, 19),
        (c, b, a, 4),
    ):
        x -= y
        x ^= _rotate(y, bits)
        y += z


def _finish(a: Words, b: Words, c: Words) -> None:
    for x, y, bits in (
        (c, b, 14),
        (a, c, 11),
        (b, a, 25),
        (c, b, 16),
        (a, c, 4),
        (b, a, 14),
        (c, b, 24),
    ):
        x ^= y
        x -= _rotate(y, bits)
