"""Where a batch ends inside a segment: just before a change that is too much, or of a new shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailrace.log import segment
from tailrace.log.header import Header
from tailrace.log.offsets import ChangeOffsets
from tailrace.log.reader import Link, Reader
from tailrace.log.relations import rows_by_table
from tailrace.model import Offset, Relation
from tailrace.postgres.frames import Frames

Wanted = Callable[[Relation], bool]
"""Whether a reader wants the changes of a table."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch may hold. A single change is always let through."""

    changes_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Weight:
    """How much a batch holds: wanted changes, and the bytes of their frames."""

    changes: int = 0
    size: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.changes + other.changes, self.size + other.size)

    def fits(self, limits: Limits) -> bool:
        """Whether it is not too much."""
        return self.changes <= limits.changes_max and self.size <= limits.bytes_max


def just_before(offset: Offset) -> Offset:
    """The highest position that does not include `offset`."""
    if offset.ordinal:
        return Offset(offset.commit_lsn, offset.ordinal - 1)
    return Offset.whole(offset.commit_lsn - 1)


class Shapes:
    """The shapes that a batch has met so far.

    A table is known by its oid and by its name: it may be renamed, or dropped and made again.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._met: dict[int | str, Relation] = {}

    def cut(self, header: Header, start: Offset, *, after: Offset) -> Offset | None:
        """Where a batch that began after `after` must end, because a wanted table has another shape
        from there on. `start` is where it enters this segment.
        """
        for use in sorted(header.relations, key=lambda use: use.since):
            if not self._wanted(use.relation):
                continue
            names = (use.relation.oid, use.relation.qualified)
            is_new = any(self._met.get(name, use.relation) != use.relation for name in names)
            if is_new and use.since > start:
                cut = just_before(use.since)
                if cut > after:
                    return cut
            self._met.update(dict.fromkeys(names, use.relation))
        return None


def cut_inside(
    reader: Reader, link: Link, after: Offset, *, limits: Limits, wanted: Wanted
) -> Offset:
    """The highest position in a segment up to which `limits` let wanted changes through.

    At least one is let through, and a Truncate of several tables is never cut. Raises
    ObjectMissing if the segment was merged away a moment ago.
    """
    header = link.header
    oids = {use.relation.oid for use in header.relations if wanted(use.relation)}
    taken = Weight()
    for body in _bodies(link):
        if body.last <= after:
            continue
        if (taken + body.weight).fits(limits):
            taken += body.weight
            continue
        frames = (
            segment.read(reader.store, body.key) if header.parts else reader.read(link)
        ).frames
        offsets = body.offsets(frames)
        changes = np.where(offsets.is_after(after), _changes_of(frames, oids), 0)
        too_much = _first_too_much(frames, changes, taken, limits)
        if too_much is not None:
            return just_before(offsets.at(too_much))
        sizes = np.diff(frames.offsets)
        taken += Weight(int(changes.sum()), int(sizes[changes > 0].sum()))
    return Offset.whole(header.end)


@dataclass(frozen=True, slots=True)
class _Body:
    """An object that holds changes of a segment, the segment itself or a part; `weight` is what it
    has at most.
    """

    key: str
    weight: Weight
    last: Offset
    first_ordinal: int | None = None

    def offsets(self, frames: Frames) -> ChangeOffsets:
        """Number the changes of its frames."""
        if self.first_ordinal is None:
            return ChangeOffsets.of(frames)
        return ChangeOffsets.of_part(
            frames, first_ordinal=self.first_ordinal, commit_lsn=self.last.commit_lsn
        )


def _bodies(link: Link) -> Iterator[_Body]:
    header = link.header
    if not header.parts:
        weight = Weight(header.change_count, header.data_bytes)
        yield _Body(link.key, weight, Offset.whole(header.end))
    for part in header.parts:
        if part.change_count:
            weight = Weight(part.change_count, part.data_bytes)
            last = Offset(header.end, part.first_ordinal + part.change_count - 1)
            yield _Body(part.key, weight, last, part.first_ordinal)


def _changes_of(frames: Frames, oids: set[int]) -> NDArray[np.int64]:
    """How many changes of these tables each frame holds."""
    changes = np.zeros(len(frames), dtype=np.int64)
    for oid, places in rows_by_table(frames):
        if oid in oids:
            changes[places] += 1
    return changes


def _first_too_much(
    frames: Frames, changes: NDArray[np.int64], taken: Weight, limits: Limits
) -> int | None:
    """The first frame that goes over a limit; never the very first one of a batch."""
    wanted = changes.nonzero()[0]
    change_total = np.cumsum(changes[wanted]) + taken.changes
    size_total = np.cumsum(np.diff(frames.offsets)[wanted]) + taken.size
    is_over = (change_total > limits.changes_max) | (size_total > limits.bytes_max)
    if not taken.changes:
        is_over[:1] = False
    return int(wanted[is_over.argmax()]) if is_over.any() else None
