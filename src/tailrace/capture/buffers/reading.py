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
from tailrace.model import Relation
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation

_PIECE_CELLS_MAX: Final = 1 << 20


class Shapes(Protocol):
    """What is known of the shapes of tables; both raise SourceError."""

    def numbered(self, oid: int, number: int) -> BufferShape:
        """A shape by its number."""

    def described(self, oid: int, form: str) -> BufferShape:
        """The shape of a row that fitted none, by the form that it has instead."""


WantBase: TypeAlias = Callable[[int, str], None]
"""Told the oid of a table that needs a new base, because the log cannot have some of its changes as
they were made, and why.
"""

TORN: Final = "triggers of the application changed too many rows at once to put them in order"
_UNREADABLE: Final = "a row was buffered while the table was altered, and cannot be read"

InsertsOnly: TypeAlias = Callable[[Relation], bool]
"""Whether updates and deletes of a table are not wanted; asked only if there are some."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A Relation frame of a run; `layout` if it is that of a buffer."""

    place: int
    oid: int
    frame: bytes
    layout: BufferLayout | None


class BufferReading:
    """Follows the Relation frames of buffers on one connection."""

    def __init__(
        self, shapes: Shapes, *, want_base: WantBase, inserts_only: InsertsOnly | None
    ) -> None:
        self._shapes = shapes
        self._want_base = want_base
        self._inserts_only = inserts_only
        self._known: dict[tuple[int, str], BufferShape] = {}
        self._layouts: dict[int, BufferLayout] = {}

    def concerns(self, heard: Sequence[Heard]) -> bool:
        """Whether any buffer is known, or becomes known in this run."""
        return bool(self._layouts) or any(each.layout for each in heard)

    def altered(self, frames: Frames) -> list[tuple[int, int]]:
        """Where in a run a buffer that is known becomes another one, and whose buffer it is."""
        layouts, places = dict(self._layouts), []
        for each in relations_in(frames):
            if each.layout is not None:
                if layouts.get(each.oid, each.layout) != each.layout:
                    places.append((each.place, each.layout.table_oid))
                layouts[each.oid] = each.layout
        return places

    def read(
        self,
        frames: Frames,
        heard: Sequence[Heard],
        rows: NDArray[np.intp],
        oids: NDArray[np.int64],
        splice: Splice,
    ) -> dict[int, list[ShapedRows]]:
        """The buffered rows by table, of those that have any; the layouts in force move on."""
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
                        found = self._by_shape(frames, piece, layout, splice)
                        wanted = (self._wanted(group, splice) for group in found)
                        tables[layout.table_oid] += (group for group in wanted if len(group.at))
        return {oid: groups for oid, groups in tables.items() if groups}

    def _wanted(self, group: ShapedRows, splice: Splice) -> ShapedRows:
        """The rows without those that the table would not have sent through its publication."""
        if self._inserts_only is None:
            return group
        is_out = (group.op == Tag.UPDATE) | (group.op == Tag.DELETE)
        if not is_out.any() or not self._inserts_only(group.shape.relation):
            return group
        splice.leave_out(group.places[is_out].tolist())
        return ShapedRows(group.rows, group.at[~is_out], group.places[~is_out], group.shape)

    def _by_shape(
        self, frames: Frames, places: NDArray[np.intp], layout: BufferLayout, splice: Splice
    ) -> Iterator[ShapedRows]:
        rows, oid = read_buffered(frames, places, layout), layout.table_oid
        for said, at in rows.grouped("shape"):
            shape = self._shape(oid, said.decode())
            if shape is None:
                self._want_base(oid, _UNREADABLE)
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
