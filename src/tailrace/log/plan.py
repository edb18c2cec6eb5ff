"""Which changes a batch reads, and in which pieces: decided from headers alone wherever possible.

A batch is a range `(after, upto]`. It ends at a segment's end; or inside one where a limit is
reached, if need be inside a transaction; or just before a table that it reads changes its shape.
Planning the same range twice gives the same pieces, whatever has been merged in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tailrace.log import segment
from tailrace.log.header import Header
from tailrace.log.reader import Link, Reader
from tailrace.log.relations import ChangeOffsets
from tailrace.log.segment import Segment
from tailrace.model import Lsn, Offset, Relation
from tailrace.storage import ObjectMissing, Store

Wanted = Callable[[Relation], bool]
"""Whether a reader wants the changes of a table."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch may hold. A single change is always let through."""

    changes_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Which transaction a part belongs to: its Begin or its Commit may lie in other objects."""

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    first_ordinal: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to fetch and decode alone: a segment or a part, and the range wanted of it."""

    key: str
    after: Offset
    upto: Offset
    data_bytes: int
    part: OpenPart | None = None


def plan_end(reader: Reader, after: Offset, *, limits: Limits, wanted: Wanted) -> Offset:
    """Where a batch that starts after `after` ends; `after` itself if there is nothing more."""
    changes_left, bytes_left = limits.changes_max, limits.bytes_max
    shapes: dict[str, bytes] = {}
    end = after
    for link in reader.walk(after):
        cut = _shape_cut(link.header, shapes, after=after, wanted=wanted)
        changes, size = _weight(link, wanted)
        if changes > changes_left or size > bytes_left:
            if end == after:
                share = min(changes_left / max(changes, 1), bytes_left / max(size, 1))
                end = _inside(reader.store, link, after, share)
            return min(end, cut) if cut else end
        if cut:
            return cut
        changes_left -= changes
        bytes_left -= size
        end = Offset.whole(link.header.end)
    return end


def pieces(reader: Reader, after: Offset, upto: Offset, *, wanted: Wanted) -> Iterator[Piece]:
    """What to read for `(after, upto]`, in order; objects without a wanted change are left out."""
    for link in reader.walk(after):
        header = link.header
        if Offset.whole(header.start) >= upto:
            return
        if any(wanted(use.relation) for use in header.relations):
            if header.parts:
                yield from _part_pieces(header, after, upto)
            else:
                yield Piece(link.key, after, upto, header.data_bytes)


def fetch(store: Store, piece: Piece, *, wanted: Wanted) -> Iterable[tuple[Piece, Segment]]:
    """Read a piece. If its segment has been merged since it was planned, read the merged ones
    instead.
    """
    try:
        return [(piece, segment.read(store, piece.key))]
    except ObjectMissing:
        again = list(pieces(Reader(store), piece.after, piece.upto, wanted=wanted))
        return [(found, segment.read(store, found.key)) for found in again]


def offset_before_time(reader: Reader, time_us: int) -> Offset:
    """The position just before the first transaction that committed at or after `time_us`."""
    end = Offset.whole(reader.begin())
    for link in reader.walk(end):
        if link.header.commit_ts_us_max >= time_us and link.header.transaction_count:
            transactions = segment.read(reader.store, link.key).frames.transactions()
            first = int(np.argmax(transactions.commit_ts_us >= time_us))
            return Offset.whole(int(transactions.end_lsn[first]) - 1)
        end = Offset.whole(link.header.end)
    return end


def offset_at_time(reader: Reader, time_us: int) -> Offset:
    """The position of the last transaction that committed at or before `time_us`."""
    end = Offset.whole(reader.begin())
    for link in reader.walk(end):
        if link.header.commit_ts_us_min <= time_us and link.header.transaction_count:
            transactions = segment.read(reader.store, link.key).frames.transactions()
            within = np.flatnonzero(transactions.commit_ts_us <= time_us)
            end = Offset.whole(int(transactions.end_lsn[within[-1]]))
    return end


def just_before(offset: Offset) -> Offset:
    """The highest position that does not include `offset`."""
    if offset.ordinal:
        return Offset(offset.commit_lsn, offset.ordinal - 1)
    return Offset.whole(offset.commit_lsn - 1)


def _shape_cut(
    header: Header, shapes: dict[str, bytes], *, after: Offset, wanted: Wanted
) -> Offset | None:
    """Where the batch must end because a wanted table has another shape from there on."""
    for use in sorted(header.relations, key=lambda use: use.since):
        if not wanted(use.relation):
            continue
        known = shapes.get(use.relation.qualified)
        if known is not None and known != use.frame and use.since > after:
            cut = just_before(use.since)
            if cut > after:
                return cut
        shapes[use.relation.qualified] = use.frame
    return None


def _weight(link: Link, wanted: Wanted) -> tuple[int, int]:
    """How many wanted changes a segment holds, and about how many bytes they take."""
    header = link.header
    changes = sum(use.change_count for use in header.relations if wanted(use.relation))
    if not changes:
        return 0, 0
    return changes, link.data_bytes * changes // header.change_count


def _inside(store: Store, link: Link, after: Offset, share: float) -> Offset:
    """A position inside a segment, after about that share of its changes, at least one."""
    header = link.header
    assert header.last is not None
    count = max(1, int(header.change_count * share))
    if header.parts:
        done = after.ordinal + 1 if after.commit_lsn == header.end else 0
        ordinal = done + count - 1
        return (
            Offset.whole(header.end)
            if ordinal >= header.last.ordinal
            else Offset(header.end, ordinal)
        )
    frames = segment.read(store, link.key).frames
    offsets = ChangeOffsets.of(frames)
    changing = frames.change_counts().nonzero()[0]
    lsn, place = offsets.commit_lsn[changing], offsets.ordinal[changing]
    is_later = (lsn > after.commit_lsn) | ((lsn == after.commit_lsn) & (place > after.ordinal))
    later = changing[is_later]
    if count >= len(later):
        return Offset.whole(header.end)
    # Ending just before a change keeps a Truncate of several tables whole.
    return just_before(offsets.at(int(later[count])))


def _part_pieces(header: Header, after: Offset, upto: Offset) -> Iterator[Piece]:
    for part in header.parts:
        first = Offset(header.end, part.first_ordinal)
        last = Offset(header.end, part.first_ordinal + part.change_count - 1)
        if last > after and first <= upto:
            transaction = OpenPart(
                header.end, header.commit_ts_us_min, header.xid, part.first_ordinal
            )
            yield Piece(part.key, after, upto, part.data_bytes, transaction)
