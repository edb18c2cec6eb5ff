"""Reads the rows of buffers out of a run of frames, each under the shape it was written in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.buffers.buffered import read_buffered
from tailrace.capture.buffers.layout import BufferLayout
from tailrace.capture.buffers.ordering import ShapedRows
from tailrace.capture.buffers.splicing import Splice
from tailrace.capture.buffers.whole_rows import taken_apart
from tailrace.control.shapes import BufferShape
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation

_PIECE_CELLS_MAX: Final = 1 << 20


class Shapes(Protocol):
    """What is known of the shapes of tables; both raise SourceError."""

    def numbered(self, oid: int, number: int) -> BufferShape:
        """A shape by its number."""

    def described(self, oid: int, form: str) -> BufferShape:
        """The shape of a row that fitted none, by the form that it has instead."""


Unreadable: TypeAlias = Callable[[int], None]
"""Told the oid of a table of which a row cannot be read by anyone: it needs a new base."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A Relation frame of a run; `layout` if it is that of a buffer."""

    place: int
    oid: int
    frame: bytes
    layout: BufferLayout | None


class BufferReading:
    """Follows the Relation frames of buffers on one connection."""

    def __init__(self, shapes: Shapes, *, unreadable: Unreadable) -> None:
        self._shapes = shapes
        self._unreadable = unreadable
        self._known: dict[tuple[int, str], BufferShape] = {}
        self._layouts: dict[int, BufferLayout] = {}

    def concerns(self, heard: Sequence[Heard]) -> bool:
        """Whether any buffer is known, or becomes known in this run."""
        return bool(self._layouts) or any(each.layout for each in heard)

    def read(
        self,
        frames: Frames,
        heard: Sequence[Heard],
        rows: NDArray[np.intp],
        oids: NDArray[np.int64],
        splice: Splice,
    ) -> dict[int, list[ShapedRows]]:
        """The buffered rows by table; the layouts in force move on."""
        tables: dict[int, list[ShapedRows]] = defaultdict(list)
        known = {*self._layouts, *(each.oid for each in heard if each.layout)}
        for buffer in known & {*np.unique(oids).tolist(), *(each.oid for each in heard)}:
            mine = rows[oids == buffer]
            news = [each for each in heard if each.oid == buffer]
            parts = np.split(mine, np.searchsorted(mine, [each.place for each in news]))
            for layout, part in zip(
                [self._layouts.get(buffer), *(each.layout for each in news)], parts, strict=True
            ):
                if layout is not None:
                    self._layouts[buffer] = layout
                    for piece in _pieces(part, layout):
                        tables[layout.table_oid] += self._by_shape(frames, piece, layout, splice)
        return tables

    def _by_shape(
        self, frames: Frames, places: NDArray[np.intp], layout: BufferLayout, splice: Splice
    ) -> Iterator[ShapedRows]:
        rows, oid = read_buffered(frames, places, layout), layout.table_oid
        for said, at in rows.grouped("shape"):
            shape = self._shape(oid, said.decode())
            if shape is None:
                self._unreadable(oid)
                splice.leave_out(places[at].tolist())
            elif shape.row is None:
                yield ShapedRows(rows, at, places[at], shape)
            else:
                apart, columns = taken_apart(rows, at, shape)
                yield ShapedRows(apart, at, places[at], columns)

    def _shape(self, oid: int, said: str) -> BufferShape | None:
        """The shape that a row names, or describes; None if it does neither."""
        if not said:
            return None
        if not said.isdecimal():
            return self._shapes.described(oid, said)
        if (oid, said) not in self._known:
            self._known[oid, said] = self._shapes.numbered(oid, int(said))
        return self._known[oid, said]


def relations_in(frames: Frames) -> list[Heard]:
    """The Relation frames of a run."""
    heard = []
    for place in np.flatnonzero(frames.tags == Tag.RELATION).tolist():
        frame = frames.frame(place)
        relation = parse_relation(frame)
        heard.append(Heard(place, relation.oid, frame, BufferLayout.of(relation)))
    return heard


def _pieces(places: NDArray[np.intp], layout: BufferLayout) -> Iterator[NDArray[np.intp]]:
    """So many rows at a time that their cells stay few."""
    rows_max = max(_PIECE_CELLS_MAX // len(layout.places), 1)
    for first in range(0, len(places), rows_max):
        yield places[first : first + rows_max]
