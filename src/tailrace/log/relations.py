"""Which version of each table's shape is in force, frame by frame.

Postgres sends a Relation frame before the first row of a table on a connection and again after
each change of its shape. A segment must decode alone, so its header repeats the versions that were
in force when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt
from tailrace.log.header import RelationUse
from tailrace.model import Lsn, Offset, Relation
from tailrace.postgres.catalog import RelationCatalog
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation, parse_truncate

Describe = Callable[[Sequence[int]], Mapping[int, RelationCatalog]]
"""Asks the source's catalog about tables, by oid; tables that are gone are left out."""


@dataclass(frozen=True, slots=True)
class _Version:
    frame: bytes
    relation: Relation


@dataclass(frozen=True, slots=True)
class ChangeOffsets:
    """The offset of each frame's first change; `commit_lsn` is 0 while the transaction is open."""

    commit_lsn: NDArray[np.int64]
    ordinal: NDArray[np.int64]

    @classmethod
    def of(cls, frames: Frames) -> ChangeOffsets:
        """Number the changes of whole transactions."""
        counts = frames.change_counts()
        transactions = frames.transactions()
        index = np.searchsorted(transactions.last_frame, np.arange(len(frames)))
        before = np.cumsum(counts) - counts
        first_frame = np.concatenate([[0], transactions.last_frame[:-1] + 1])
        ordinal = before - before[first_frame][index]
        return cls(transactions.end_lsn[index], ordinal)

    @classmethod
    def of_part(cls, frames: Frames, first_ordinal: int) -> ChangeOffsets:
        """Number the changes of a piece of one transaction."""
        counts = frames.change_counts()
        ordinal = np.cumsum(counts) - counts + first_ordinal
        return cls(np.zeros(len(frames), dtype=np.int64), ordinal)

    def at(self, frame: int) -> Offset:
        """The offset of one frame's first change."""
        return Offset(Lsn(self.commit_lsn[frame]), int(self.ordinal[frame]))


class RelationsInForce:
    """Follows the Relation frames of one connection."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._in_force: dict[int, _Version] = {}
        self._known: dict[bytes, Relation] = {}

    def follow(self, frames: Frames, offsets: ChangeOffsets) -> tuple[RelationUse, ...]:
        """The versions that these frames' rows are decoded with, ordered by oid and offset."""
        new_versions = self._read_relation_frames(frames)
        uses: list[RelationUse] = []
        for oid, places in _rows_by_table(frames):
            starts = [0, *(place for place, _ in new_versions.get(oid, ()))]
            versions = [self._in_force.get(oid), *(v for _, v in new_versions.get(oid, ()))]
            bounds = np.searchsorted(places, [*starts[1:], len(frames)])
            first = 0
            for number, (version, bound) in enumerate(zip(versions, bounds, strict=True)):
                if bound > first:
                    if version is None:
                        raise SegmentCorrupt(f"rows of table {oid} came before its relation frame")
                    uses.append(
                        RelationUse(
                            frame=version.frame,
                            relation=version.relation,
                            since=offsets.at(int(places[first])),
                            change_count=int(bound) - first,
                            initial=number == 0,
                        )
                    )
                first = int(bound)
        for oid, news in new_versions.items():
            self._in_force[oid] = news[-1][1]
        return tuple(uses)

    def _read_relation_frames(self, frames: Frames) -> dict[int, list[tuple[int, _Version]]]:
        found = [(int(i), frames.frame(int(i))) for i in frames.frames_of(Tag.RELATION, size=8)]
        self._learn({frame for _, frame in found} - self._known.keys())
        versions: dict[int, list[tuple[int, _Version]]] = {}
        for place, frame in found:
            relation = self._known[frame]
            versions.setdefault(relation.oid, []).append((place, _Version(frame, relation)))
        return versions

    def _learn(self, frames: set[bytes]) -> None:
        if not frames:
            return
        relations = {frame: parse_relation(frame) for frame in frames}
        catalog = self._describe(sorted({relation.oid for relation in relations.values()}))
        for frame, relation in relations.items():
            self._known[frame] = _described(relation, catalog.get(relation.oid))


def _described(relation: Relation, catalog: RelationCatalog | None) -> Relation:
    # The catalog shows the table of now. If it has moved on since the row was written, the frame
    # stands alone.
    if catalog is None or catalog.columns != relation.column_names:
        return relation
    return replace(relation, key=catalog.key or relation.key, type_names=catalog.type_names)


def _rows_by_table(frames: Frames) -> list[tuple[int, NDArray[np.intp]]]:
    """For each table, the frames that change it, in order."""
    tags = frames.tags
    rows = np.flatnonzero((tags == Tag.INSERT) | (tags == Tag.UPDATE) | (tags == Tag.DELETE))
    oids = frames.integers(rows, 1, ">u4")
    truncates = [
        (oid, int(place))
        for place in np.flatnonzero(tags == Tag.TRUNCATE)
        for oid in parse_truncate(frames.frame(int(place)))
    ]
    if truncates:
        oids = np.concatenate([oids, [oid for oid, _ in truncates]])
        rows = np.concatenate([rows, [place for _, place in truncates]])
        order = np.argsort(rows, kind="stable")
        oids, rows = oids[order], rows[order]
    return [(int(oid), rows[oids == oid]) for oid in np.unique(oids)]
