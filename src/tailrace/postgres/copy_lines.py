r"""Lines of `COPY … TO STDOUT`, text format, cut into cells by the buffer.

Columns are separated by tabs, NULL is `\N`, and a backslash begins an escape of two bytes: COPY
writes no others. So a tab is always a separator, and every backslash at an even place of a run of
them begins an escape. Invariant: the cells of a line are the texts that Postgres would send for
the same row in a stream.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt
from tailrace.postgres.binaries import text_bytes, text_offsets
from tailrace.postgres.tuples import NULL, TEXT, Cells

_TAB: Final = ord("\t")
_BACKSLASH: Final = ord("\\")
_NULL_MARK: Final = ord("N")

_MEANING: Final = np.arange(256, dtype=np.uint8)
_MEANING[[ord(letter) for letter in "bfnrtv"]] = [ord(char) for char in "\b\f\n\r\t\v"]


def split_lines(lines: pa.BinaryArray, column_count: int) -> tuple[NDArray[np.uint8], list[Cells]]:
    """The cells of each column, still escaped, and the bytes that they point into; raises
    SegmentCorrupt.
    """
    data, offsets = text_bytes(lines), text_offsets(lines)
    tabs = np.flatnonzero(data == _TAB)
    each = max(column_count - 1, 0)
    if (np.searchsorted(tabs, offsets) != each * np.arange(len(offsets))).any():
        raise SegmentCorrupt("a row of a base has a wrong count of columns")
    if not column_count:
        return data, []
    borders = tabs.reshape(len(lines), each)
    starts = [offsets[:-1], *(borders[:, place] + 1 for place in range(each))]
    ends = [*(borders[:, place] for place in range(each)), offsets[1:]]
    return data, [_cells(data, *pair) for pair in zip(starts, ends, strict=True)]


def unescaped(data: NDArray[np.uint8], cells: list[Cells]) -> tuple[NDArray[np.uint8], list[Cells]]:
    """The same cells as plain text; raises SegmentCorrupt."""
    escapes = _escapes(data)
    if not len(escapes):
        return data, cells
    plain, keep = data.copy(), np.ones(len(data), dtype=np.bool_)
    plain[escapes + 1] = _MEANING[data[escapes + 1]]
    keep[escapes] = False
    return plain[keep], [_moved(each, escapes) for each in cells]


def _cells(data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]) -> Cells:
    length = end - start
    kind = np.full(len(start), TEXT, dtype=np.uint8)
    short = np.flatnonzero(length == 2)
    if len(short):
        at = start[short]
        nulls = short[(data[at] == _BACKSLASH) & (data[at + 1] == _NULL_MARK)]
        kind[nulls], length[nulls] = NULL, 0
    return Cells(kind, start, length)


def _escapes(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where an escape begins, but for those that mean NULL."""
    backslashes = np.flatnonzero(data == _BACKSLASH)
    if not len(backslashes):
        return backslashes
    is_first = np.diff(backslashes, prepend=-2) != 1
    run = np.maximum.accumulate(np.where(is_first, backslashes, 0))
    escapes: NDArray[np.int64] = backslashes[(backslashes - run) % 2 == 0]
    if escapes[-1] + 1 == len(data):
        raise SegmentCorrupt("a row of a base ends inside of an escape")
    kept: NDArray[np.int64] = escapes[data[escapes + 1] != _NULL_MARK]
    return kept


def _moved(cells: Cells, escapes: NDArray[np.int64]) -> Cells:
    """The cells in bytes from which those at `escapes` were taken out."""
    end = cells.start + cells.length
    start = cells.start - np.searchsorted(escapes, cells.start)
    return Cells(cells.kind, start, end - np.searchsorted(escapes, end) - start)
