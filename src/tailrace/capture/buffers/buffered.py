"""Buffered rows, and the frames that Postgres would have sent for the changes that they record.

A row is read as it was streamed: an Insert frame of the buffer. Its columns lie in it as they lie
in a frame of the table, so a frame is made by joining stretches of it, for all rows of a shape at
once; no value is ever looked at. Invariant: the frames are those of the table's own stream, byte
for byte, except that a large value is there even if it did not change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.capture.buffers.layout import BufferLayout, identity_of, keeps_old_rows
from tailrace.control.shapes import BufferShape
from tailrace.errors import SegmentCorrupt
from tailrace.postgres.binaries import Array, pick
from tailrace.postgres.buffer import FIXED_COLUMNS
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag
from tailrace.postgres.tuples import TEXT, WORD_BYTES, Cells, MalformedTuple, walk

_TUPLE_AT: Final = 6
"""An Insert frame is a tag, the oid and the mark `N`, then the tuple."""

_NOTHING: Final = b"n"


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of one buffer, in the order of their frames. Column i of a row is `data` from its
    `bounds[i]` to its `bounds[i + 1]`, kind and size included.
    """

    data: NDArray[np.uint8]
    bounds: list[NDArray[np.int64]]
    own: dict[str, Cells]
    layout: BufferLayout

    def __len__(self) -> int:
        return len(self.bounds[0])

    @property
    def op(self) -> NDArray[np.uint8]:
        """The letter of each row: I, U, D or T."""
        return self.data[self.own["op"].start]

    def integers(self, column: str) -> NDArray[np.int64]:
        """One of the columns of integers that a row has of its own; 0 where it has none."""
        cells = self.own[column]
        texts = pick(self.data, cells.start, cells.start + cells.length)
        if not cells.length.all():
            texts = pc.if_else(pa.array(cells.length > 0), texts, pa.scalar(b"0", pa.binary()))
        values: NDArray[np.int64] = texts.cast(pa.string()).cast(pa.int64()).to_numpy()
        return values

    def text(self, column: str, row: int) -> bytes | None:
        """One value of such a column; None if it is NULL."""
        cells = self.own[column]
        start, length = int(cells.start[row]), int(cells.length[row])
        return self.data[start : start + length].tobytes() if cells.kind[row] == TEXT else None

    def grouped(self, column: str) -> Iterator[tuple[bytes, NDArray[np.intp]]]:
        """The values of such a column, empty for NULL, and the rows that have each."""
        cells = self.own[column]
        texts = pick(self.data, cells.start, cells.start + cells.length).dictionary_encode()
        for number, text in enumerate(texts.dictionary.to_pylist()):
            yield text or b"", np.flatnonzero(texts.indices.to_numpy() == number)

    def tuples(self, columns: Sequence[int], at: NDArray[np.intp]) -> list[Array]:
        """These columns of the rows `at`, as stretches to be joined."""
        stretches: list[list[int]] = []
        for column in columns:
            if stretches and stretches[-1][-1] == column - 1:
                stretches[-1].append(column)
            else:
                stretches.append([column])
        return [
            pick(self.data, self.bounds[stretch[0]][at], self.bounds[stretch[-1] + 1][at])
            for stretch in stretches
        ]


def read_buffered(frames: Frames, places: NDArray[np.intp], layout: BufferLayout) -> BufferedRows:
    """Read these Insert frames of a buffer; raises SegmentCorrupt."""
    begin, end = frames.offsets[places], frames.offsets[places + 1]
    first = int(begin[0])
    part = frames.data[first : int(end[-1]) + WORD_BYTES]
    missing = int(end[-1]) - first + WORD_BYTES - len(part)
    data = np.concatenate([part, np.zeros(missing, np.uint8)]) if missing else part
    try:
        cells, _ = walk(data, begin - first + _TUPLE_AT, end - first, [True] * len(layout.places))
    except MalformedTuple as error:
        raise SegmentCorrupt(f"a buffered row has {error.what}") from error
    bounds = [begin - first + _TUPLE_AT + 2, *(each.start + each.length for each in cells)]
    return BufferedRows(data, bounds, dict(zip(FIXED_COLUMNS, cells, strict=False)), layout)


def source_frames(
    rows: BufferedRows, at: NDArray[np.intp], shape: BufferShape
) -> Iterator[tuple[NDArray[np.intp], Array]]:
    """The table's frames for the rows `at`, all of which have this shape: some rows, and theirs."""
    op = rows.op[at]
    making = _Making(rows, shape)
    for letter, make in (
        (Tag.INSERT, making.inserts),
        (Tag.UPDATE, making.updates),
        (Tag.DELETE, making.deletes),
        (Tag.TRUNCATE, making.truncates),
    ):
        chosen = at[op == letter]
        if len(chosen):
            yield from make(chosen)


def key_changed(
    rows: BufferedRows, at: NDArray[np.intp], shape: BufferShape, places: Sequence[int]
) -> NDArray[np.bool_]:
    """For each of these updated rows, whether one of these columns has a new value."""
    new, old = rows.layout.columns(shape)
    changed = np.zeros(len(at), dtype=np.bool_)
    for place in places if len(at) else ():
        now, before = rows.tuples([new[place]], at), rows.tuples([old[place]], at)
        changed |= pc.not_equal(now[0], before[0]).to_numpy(zero_copy_only=False)
    return changed


class _Making:
    """Makes the frames of one shape's rows."""

    def __init__(self, rows: BufferedRows, shape: BufferShape) -> None:
        self._rows = rows
        self._shape = shape
        self._new, self._old = rows.layout.columns(shape)
        self._oid = struct.pack(">I", shape.relation.oid)
        self._count = struct.pack(">H", len(self._new))

    def inserts(self, at: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], Array]]:
        head = b"I" + self._oid + b"N" + self._count
        yield at, joined(len(at), head, *self._after(at))

    def updates(self, at: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], Array]]:
        new = b"N" + self._count
        if keeps_old_rows(self._shape):
            with_old = np.ones(len(at), dtype=np.bool_)
        else:
            with_old = key_changed(self._rows, at, self._shape, identity_of(self._shape))
        plain, keyed = at[~with_old], at[with_old]
        if len(plain):
            head = b"U" + self._oid + new
            yield plain, joined(len(plain), head, *self._after(plain))
        if len(keyed):
            head = b"U" + self._oid
            pieces = [head, *self._before(keyed), new, *self._after(keyed)]
            yield keyed, joined(len(keyed), *pieces)

    def deletes(self, at: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], Array]]:
        yield at, joined(len(at), b"D" + self._oid, *self._before(at))

    def truncates(self, at: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], Array]]:
        frame = b"T" + struct.pack(">IB", 1, 0) + self._oid
        yield at, joined(len(at), frame)

    def _after(self, at: NDArray[np.intp]) -> list[Array]:
        return self._rows.tuples(self._new, at)

    def _before(self, at: NDArray[np.intp]) -> list[Array | bytes]:
        """The old row, or only its key, as the table's replica identity has it."""
        if keeps_old_rows(self._shape):
            return [b"O" + self._count, *self._rows.tuples(self._old, at)]
        pieces: list[Array | bytes] = [b"K" + self._count]
        keys = identity_of(self._shape)
        for place, column in enumerate(self._old):
            pieces += self._rows.tuples([column], at) if place in keys else [_NOTHING]
        return pieces


def joined(count: int, *pieces: Array | bytes) -> Array:
    """One piece after the other, for each of `count` rows."""
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        constant = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        return pa.repeat(pa.scalar(constant, pa.binary()), count)
    # Typed stubs of pyarrow do not know that constants and columns can be joined.
    join: Any = pc.binary_join_element_wise
    arguments = [pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in pieces]
    values: Array = join(*arguments, pa.scalar(b"", pa.binary()))
    return values
