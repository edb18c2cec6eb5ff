"""Where the values of many tuples lie: all rows' cursors walk one column at a time.

A tuple is a count of columns, then for each column a byte: `n` for NULL, `u` for a large value that
did not change and was not sent, `t` for text, followed by its size and bytes. Invariant: no cursor
is ever used past the end of its frame, so no size that a damaged frame states is believed before it
is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.postgres.integers import overlapping

NULL: Final = ord("n")
UNCHANGED: Final = ord("u")
TEXT: Final = ord("t")

WORD_BYTES: Final = 8
"""The walk reads a kind and a size together as one 8-byte word, so it reads up to that far past a
cursor.
"""


class MalformedTuple(Exception):
    """A tuple does not fit its frame or its table; `row` says which of those walked."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row
        self.what = what


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of some rows: the kind of each value, and where its text lies. Without text,
    `length` is 0.
    """

    kind: NDArray[np.uint8]
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def at(self, rows: NDArray[np.intp]) -> Cells:
        """The cells of only these rows."""
        return Cells(self.kind[rows], self.start[rows], self.length[rows])

    def overlaid(self, rows: NDArray[np.intp], other: Cells) -> Cells:
        """With the cells of `rows` taken from `other`, save where only this one has the value."""
        missing = (other.kind == UNCHANGED) & (self.kind[rows] == TEXT)
        if missing.any():
            rows, other = rows[~missing], other.at(np.flatnonzero(~missing))
        merged = Cells(self.kind.copy(), self.start.copy(), self.length.copy())
        merged.kind[rows], merged.start[rows], merged.length[rows] = (
            other.kind,
            other.start,
            other.length,
        )
        return merged

    def spread(self, rows: NDArray[np.intp], places: NDArray[np.int64]) -> Cells:
        """As the cells of `rows` among `len(places)` rows; all others are NULL and lie at their
        place.
        """
        wide = Cells(np.full(len(places), NULL, np.uint8), places.copy(), np.zeros_like(places))
        wide.kind[rows], wide.start[rows], wide.length[rows] = self.kind, self.start, self.length
        return wide


def walk(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    wanted: Sequence[bool],
) -> tuple[list[Cells], NDArray[np.int64]]:
    """Read one tuple from each row's `start`: the cells of the wanted columns, and where each tuple
    ends.

    Each `end` is where the row's frame ends, at least two bytes after `start` and at least
    WORD_BYTES before the end of `data`. Raises MalformedTuple.
    """
    words = overlapping(data, "<u8")
    _demand((words[start].byteswap() >> 48) == len(wanted), "a wrong count of columns")
    cursor = start + 2
    columns: list[Cells] = []
    for keep in wanted:
        word = words[cursor].byteswap(inplace=True)
        kind = (word >> 56).astype(np.uint8)
        length = ((word >> 24) & 0xFFFFFFFF).astype(np.int64)
        text = kind == TEXT
        if text.all():
            place = cursor + 5
        else:
            _demand(text | (kind == NULL) | (kind == UNCHANGED), "an unknown kind of value")
            length *= text
            place = cursor + 1 + 4 * text
        cursor = place + length
        _demand(cursor <= end, "a value past the end")
        if keep:
            columns.append(Cells(kind, place, length))
    return columns, cursor


def _demand(sound: NDArray[np.bool_], what: str) -> None:
    if not sound.all():
        raise MalformedTuple(int(sound.argmin()), what)
