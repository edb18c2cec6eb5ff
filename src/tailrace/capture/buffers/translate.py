"""Makes of the rows that triggers have buffered the frames of the tables that they change.

What comes in is a stream in which the buffers are published: their rows are Insert frames, inside
the transaction that made the change. What goes out is what Postgres would have sent had the tables
themselves been published: a Relation frame of the table before its first row and wherever its shape
changes, and one frame for each row, in that row's place. Frames of buffers never go out.

Work is by the column over whole runs. While no buffer is published, a run goes through as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.buffers.announcing import Announcement
from tailrace.capture.buffers.buffered import source_frames
from tailrace.capture.buffers.holding import Holding
from tailrace.capture.buffers.ordering import ShapedRows, moves
from tailrace.capture.buffers.reading import (
    TORN,
    BufferReading,
    Heard,
    InsertsOnly,
    Shapes,
    WantBase,
    relations_in,
)
from tailrace.capture.buffers.splicing import Splice
from tailrace.postgres.frames import BUFFERED, Frames
from tailrace.postgres.pgoutput import Tag

_ROW_BYTES_MIN: Final = 8


class Translator:
    """Follows the stream of one connection, run by run."""

    def __init__(
        self, shapes: Shapes, *, want_base: WantBase, inserts_only: InsertsOnly | None = None
    ) -> None:
        self._reading = BufferReading(shapes, want_base=want_base, inserts_only=inserts_only)
        self._want_base = want_base
        # By table: the Relation frame that Postgres sent last, and the one that the log has last.
        self._streamed: dict[int, bytes] = {}
        self._logged: dict[int, bytes] = {}
        self._holding = Holding()

    def translate(self, frames: Frames) -> Frames:
        """The run as the log is to have it; raises SourceError, SegmentCorrupt."""
        return self._translate(frames, None)

    def translate_part(self, frames: Frames) -> Frames:
        """The same of a piece of one transaction, of which some rows may have to wait. Nothing
        waits across an ALTER: Postgres refuses it while a trigger has yet to be called for the
        table, and what waits is read as the buffer was.
        """
        done: list[Frames] = []
        start = 0
        for place, oid in self._reading.altered(frames):
            done += [self._translate_waiting(frames.slice(start, place)), self._end([oid])]
            start = place
        return Frames.concat([*done, self._translate_waiting(frames.slice(start, len(frames)))])

    def _translate_waiting(self, frames: Frames) -> Frames:
        done = self._translate(frames, self._holding)
        if not self._holding.is_full:
            return done
        return Frames.concat([done, self._translate(self._holding.make_room(), None)])

    def end_part(self) -> Frames:
        """What has waited for the end of that transaction."""
        return self._end(None)

    def _end(self, oids: Sequence[int] | None) -> Frames:
        held = self._holding.release(oids)
        return self._translate(held, None) if len(held) else held

    def forget_part(self) -> None:
        """That transaction is not wanted."""
        self._holding.release()

    def _translate(self, frames: Frames, holding: Holding | None) -> Frames:
        heard = relations_in(frames)
        if not self._reading.concerns(heard):
            self._streamed.update({each.oid: each.frame for each in heard})
            return frames
        splice = Splice(frames)
        splice.leave_out([each.place for each in heard if each.layout])
        rows = frames.frames_of(Tag.INSERT, Tag.UPDATE, Tag.DELETE, size=_ROW_BYTES_MIN)
        oids = frames.integers(rows, 1, ">u4")
        tables = self._reading.read(frames, heard, rows, oids, splice)
        if holding is not None and (ended := holding.ended_by(tables)):
            return self._translate(Frames.concat([holding.release(ended), frames]), holding)
        news: dict[int, Announcement] = defaultdict(Announcement)
        for oid, groups in tables.items():
            if holding is not None and holding.is_torn(oid, groups):
                self._want_base(oid, TORN)
            now = groups if holding is None else holding.hold(oid, groups)
            if now:
                _replace(now, splice, news[oid], len(frames))
        if holding is not None:
            splice.leave_out(holding.keep(frames).tolist())
        in_force = {**self._streamed, **self._logged}
        self._hear(heard, rows, oids, news)
        for oid, announcement in news.items():
            put, last = announcement.missing(in_force.get(oid))
            for place, frame in put:
                splice.put_before(place, frame)
            if last is not None:
                self._logged[oid] = last
        return splice.joined()

    def _hear(
        self,
        heard: Sequence[Heard],
        rows: NDArray[np.intp],
        oids: NDArray[np.int64],
        news: dict[int, Announcement],
    ) -> None:
        """Beside what comes from buffers, what Postgres streams of the same tables."""
        mixed = {*news, *self._logged}
        direct = np.isin(oids, list(mixed))
        for oid in np.unique(oids[direct]).tolist():
            mine = rows[oids == oid]
            said = [each for each in heard if each.oid == oid]
            parts = np.split(mine, np.searchsorted(mine, [each.place for each in said]))
            versions = [self._streamed.get(oid), *(each.frame for each in said)]
            for frame, part in zip(versions, parts, strict=True):
                if frame is not None:
                    news[oid].add(part, frame)
        for each in heard:
            if each.oid in mixed:
                news[each.oid].add(np.array([each.place]), each.frame, are_rows=False)
            if each.layout is None:
                self._streamed[each.oid] = each.frame


def _replace(groups: Sequence[ShapedRows], splice: Splice, news: Announcement, count: int) -> None:
    """Replace one table's rows."""
    target = np.arange(count)
    source, target_places = moves(groups)
    target[source] = target_places
    for group in groups:
        lsn = BUFFERED | group.integers("seq").astype(np.uint64)
        for chosen, made in source_frames(group.rows, group.at, group.shape):
            at = np.searchsorted(group.at, chosen)
            places = group.places[at]
            splice.replace(places, target[places], made, lsn[at])
            news.add(target[places], group.shape.frame)
