"""Ranges of the key, by which two tables are summed up: of its first column only, so that either
side tells a row's range from one value.

Whole numbers are compared as such; anything else by the bytes of its text, which both sides order
alike whatever the collation. Within a range a row has one of 256 slots, by the hash of its key, so
that a range that differs need not be read whole: range and slot together are a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.postgres.binaries import Array, text_bytes, text_offsets
from tailrace.verify.hashing import Hashes

SLOTS: Final = 256
_ROWS_PER_RANGE: Final = 4096
_NUMBER_BOUNDS_MAX: Final = 1023
# Postgres walks an array of texts to find a place in it, and finds one of numbers by halves.
_TEXT_BOUNDS_MAX: Final = 63
_TEXT_BYTES: Final = 32
"""Of a text, so many bytes decide about its range; a bound is never longer."""

_PADDING: Final = np.zeros(_TEXT_BYTES, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Range n is from bound n-1 on, up to and without bound n; ascending, none twice."""

    values: tuple[int, ...] | tuple[str, ...] = ()

    @property
    def range_count(self) -> int:
        """One more than there are bounds."""
        return len(self.values) + 1

    @property
    def are_numbers(self) -> bool:
        """Whether values are compared as numbers; not if there are none to compare with."""
        return bool(self.values) and isinstance(self.values[0], int)

    def ends(self, number: int) -> tuple[int | str | None, int | str | None]:
        """The first value of a range and the first one after it; None without end."""
        low = self.values[number - 1] if number else None
        return low, self.values[number] if number < len(self.values) else None

    def range_of(self, texts: Array) -> NDArray[np.int64]:
        """The range of each row, by the text of its first key column."""
        if not self.values:
            return np.zeros(len(texts), dtype=np.int64)
        if self.are_numbers:
            return np.searchsorted(np.array(self.values, np.int64), _numbers(texts), side="right")
        bounds = np.array([str(value).encode() for value in self.values], f"S{_TEXT_BYTES}")
        return np.searchsorted(bounds, _heads(texts.fill_null(b"")), side="right")


def choose_bounds(sample: Array, row_count: int, *, are_numbers: bool) -> Bounds:
    """Bounds that split the sampled values of the first key column, as texts, about evenly."""
    bounds_max = _NUMBER_BOUNDS_MAX if are_numbers else _TEXT_BOUNDS_MAX
    count = min(row_count // _ROWS_PER_RANGE, bounds_max, len(sample))
    if not count:
        return Bounds()
    places = np.linspace(0, len(sample) - 1, count + 1).astype(np.int64)[1:]
    if are_numbers:
        numbers = np.sort(_numbers(sample))
        return Bounds(tuple(np.unique(numbers[places]).tolist()))
    heads = np.sort(_heads(sample))
    chosen = (bytes(head).decode(errors="ignore") for head in heads[places])
    return Bounds(tuple(sorted({text for text in chosen if text}, key=str.encode)))


def slot_of(key_hashes: Hashes) -> NDArray[np.int64]:
    """The slot of each row."""
    return (key_hashes & np.uint64(SLOTS - 1)).astype(np.int64)


def neighbours(ranges: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending ranges as runs: the first and the last of each.

    >>> neighbours([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    runs: list[tuple[int, int]] = []
    for number in ranges:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _numbers(texts: Array) -> NDArray[np.int64]:
    # No source has a NULL in its key, but a lake may: it then is in the wrong place in any range.
    numbers = texts.cast(pa.string()).cast(pa.int64()).fill_null(0)
    return np.asarray(numbers.to_numpy(zero_copy_only=False))


def _heads(texts: Array) -> NDArray[np.bytes_]:
    """The first bytes of each text, padded with zeros, which no text of Postgres' holds."""
    offsets = text_offsets(texts)
    data = np.concatenate([text_bytes(texts), _PADDING])
    sizes = np.minimum(np.diff(offsets), _TEXT_BYTES)
    heads = data[offsets[:-1, None] + np.arange(_TEXT_BYTES)]
    heads[np.arange(_TEXT_BYTES) >= sizes[:, None]] = 0
    return np.ascontiguousarray(heads).view(f"S{_TEXT_BYTES}").ravel()
