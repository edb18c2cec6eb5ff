"""The rows of one table's frames: what each holds now, and what it held before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.decode.corrupt import corrupt
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag
from tailrace.postgres.tuples import WORD_BYTES, Cells, MalformedTuple, walk

_MARK_AT: Final = 5
"""A row frame is a tag, the table's oid, then a mark that says which tuple follows."""

_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")


@dataclass(frozen=True, slots=True)
class Rows:
    """Cells point into `data`. `now` has one column of cells for every row: the new tuple of an
    insert or update, the old one of a delete, nothing of a truncate. `before` has those of only the
    rows in `old`, which came with an old tuple: the whole row or just its key, as the replica
    identity has it.

    A large value that an update did not send, but whose old tuple has it, is taken from there.
    """

    data: NDArray[np.uint8]
    tag: NDArray[np.uint8]
    now: list[Cells]
    old: NDArray[np.intp]
    before: list[Cells]


def read_rows(frames: Frames, places: NDArray[np.intp], wanted: Sequence[bool]) -> Rows:
    """Read the tuples of these row and truncate frames; raises SegmentCorrupt."""
    begin, end = frames.offsets[places], frames.offsets[places + 1]
    data = _padded(frames.data, int(begin[0]), int(end[-1]))
    begin, end = begin - begin[0], end - begin[0]
    tag = data[begin]
    full = np.flatnonzero(tag != Tag.TRUNCATE)
    try:
        tuples = _read_tuples(data, tag[full], begin[full], end[full], wanted)
    except MalformedTuple as error:
        raise corrupt(frames, int(places[full[error.row]]), error.what) from error
    now, old, before = tuples
    if len(full) < len(tag):
        now = [cells.spread(full, begin) for cells in now]
    return Rows(data, tag, now, full[old], before)


def _padded(data: NDArray[np.uint8], begin: int, end: int) -> NDArray[np.uint8]:
    """These bytes and at least WORD_BYTES more; copied only where the buffer ends too soon."""
    part = data[begin : end + WORD_BYTES]
    missing = end - begin + WORD_BYTES - len(part)
    return np.concatenate([part, np.zeros(missing, np.uint8)]) if missing else part


def _read_tuples(
    data: NDArray[np.uint8],
    tag: NDArray[np.uint8],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    wanted: Sequence[bool],
) -> tuple[list[Cells], NDArray[np.intp], list[Cells]]:
    mark = data[begin + _MARK_AT]
    _check_marks(tag, mark)
    first, cursor = walk(data, begin + _MARK_AT + 1, end, wanted)
    both = np.flatnonzero((tag == Tag.UPDATE) & (mark != _NEW))
    now = first
    if len(both):
        second, cursor[both] = _read_second(data, cursor[both], end[both], both, wanted)
        now = [old.overlaid(both, new) for old, new in zip(first, second, strict=True)]
    if (cursor != end).any():
        raise MalformedTuple(int((cursor != end).argmax()), "bytes after the last value")
    has_old = np.flatnonzero(mark != _NEW)
    return now, has_old, [cells.at(has_old) for cells in first] if len(has_old) else []


def _check_marks(tag: NDArray[np.uint8], mark: NDArray[np.uint8]) -> None:
    new, old = mark == _NEW, (mark == _KEY) | (mark == _OLD)
    sound = (new & (tag != Tag.DELETE)) | (old & (tag != Tag.INSERT))
    if not sound.all():
        raise MalformedTuple(int(sound.argmin()), "an unknown kind of tuple")


def _read_second(
    data: NDArray[np.uint8],
    cursor: NDArray[np.int64],
    end: NDArray[np.int64],
    rows: NDArray[np.intp],
    wanted: Sequence[bool],
) -> tuple[list[Cells], NDArray[np.int64]]:
    """The new tuples of updates that came with an old one."""
    # A mark and a count of columns must still follow.
    sound = (data[cursor] == _NEW) & (cursor + 3 <= end)
    if not sound.all():
        raise MalformedTuple(int(rows[sound.argmin()]), "an update without its new tuple")
    try:
        return walk(data, cursor + 1, end, wanted)
    except MalformedTuple as error:
        raise MalformedTuple(int(rows[error.row]), error.what) from error
