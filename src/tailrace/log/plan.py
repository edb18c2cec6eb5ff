"""Which changes a batch reads, and in which pieces: decided from headers alone wherever possible.

A batch is a range `(after, upto]`. It ends at a segment's end; or inside one where a limit is
reached, if need be inside a transaction; or just before a table that it reads changes its shape.
The pieces of a range never overlap and hold the same changes at any time, whatever has been merged
in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailrace.errors import SegmentMissing
from tailrace.log import segment
from tailrace.log.cut import Limits, Shapes, Wanted, Weight, cut_inside, just_before
from tailrace.log.header import Header
from tailrace.log.reader import LOOKS_MAX, Link, Reader
from tailrace.log.segment import Segment
from tailrace.model import Lsn, Offset
from tailrace.storage import ObjectMissing, Store

__all__ = [
    "Limits",
    "OpenPart",
    "Piece",
    "Wanted",
    "fetch",
    "offset_at_time",
    "offset_before_time",
    "pieces",
    "plan_end",
]


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Which transaction a part belongs to: its Begin or its Commit may lie in other objects."""

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    first_ordinal: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to fetch and decode alone: a segment or a part, and the range wanted of it.

    A `writer` puts one object at most under a name, so two pieces that are equal hold the same.
    """

    key: str
    after: Offset
    upto: Offset
    data_bytes: int
    writer: str
    part: OpenPart | None = None


def plan_end(reader: Reader, after: Offset, *, limits: Limits, wanted: Wanted) -> Offset:
    """Where a batch that starts after `after` ends; `after` itself if there is nothing more."""
    return reader.looking_again(lambda: _plan_end(reader, after, limits, wanted))


def _plan_end(reader: Reader, after: Offset, limits: Limits, wanted: Wanted) -> Offset:
    taken = Weight()
    shapes = Shapes(wanted)
    end = after
    for link in reader.walk(after):
        start = max(after, Offset.whole(link.start))
        cut = shapes.cut(link.header, start, after=after)
        taken += _weight(link, wanted)
        if not taken.fits(limits):
            if end == after:
                end = cut_inside(reader, link, start, limits=limits, wanted=wanted)
            return end if cut is None else min(end, cut)
        if cut is not None:
            return cut
        end = Offset.whole(link.header.end)
    return end


def pieces(reader: Reader, after: Offset, upto: Offset, *, wanted: Wanted) -> Iterator[Piece]:
    """What to read for `(after, upto]`, in order; objects without a wanted change are left out.

    Raises SegmentMissing if the log ends before `upto`: what was planned once is never read in
    part.
    """
    if after >= upto:
        return
    for link in reader.walk(after):
        header = link.header
        start = max(after, Offset.whole(link.start))
        end = min(upto, Offset.whole(header.end))
        if any(wanted(use.relation) for use in header.relations):
            if header.parts:
                yield from _part_pieces(header, start, end)
            else:
                yield Piece(link.key, start, end, header.data_bytes, header.writer)
        if end == upto:
            return
    tip = reader.tip()
    if upto > Offset.whole(tip.position):
        raise SegmentMissing(
            f"the log ends at {tip.position}, before {upto}",
            hint="was the log restored from a backup? capture may still bring it there",
        )


def fetch(store: Store, piece: Piece, *, wanted: Wanted) -> Iterable[tuple[Piece, Segment]]:
    """Read a piece. If its segment has been merged since it was planned, read the merged one
    instead.
    """
    planned = [piece]
    for _ in range(LOOKS_MAX):
        try:
            return [(found, _read_piece(store, found)) for found in planned]
        except ObjectMissing:
            planned = list(pieces(Reader(store), piece.after, piece.upto, wanted=wanted))
    raise SegmentMissing(
        f"{piece.key} is missing",
        hint="run `tailrace log verify`; restore the object from a backup",
    )


def _read_piece(store: Store, piece: Piece) -> Segment:
    found = segment.read(store, piece.key)
    # A writer that was left behind may have put another segment under a name that was merged away
    # since. What it has read from the slot is the same, or less; a drain of its own is neither.
    if piece.part is None and piece.writer != found.header.writer:
        raise ObjectMissing(f"{piece.key} is not what was planned")
    return found


def offset_before_time(reader: Reader, time_us: int) -> Offset:
    """The position just before the first transaction that committed at or after `time_us`.

    First in the order of the log: commit times may go back, and only their values count here.
    """
    return reader.looking_again(lambda: _offset_before_time(reader, time_us))


def _offset_before_time(reader: Reader, time_us: int) -> Offset:
    end = Offset.whole(reader.begin())
    for link in reader.walk(end):
        if link.header.commit_ts_us_max >= time_us:
            for end_lsn, commit_ts_us in _transactions(reader, link):
                if commit_ts_us >= time_us:
                    return Offset.whole(end_lsn - 1)
        end = Offset.whole(link.header.end)
    return end


def offset_at_time(reader: Reader, time_us: int) -> Offset:
    """The position of the last transaction that committed at or before `time_us`, last in the order
    of the log.
    """
    return reader.looking_again(lambda: _offset_at_time(reader, time_us))


def _offset_at_time(reader: Reader, time_us: int) -> Offset:
    begin = Offset.whole(reader.begin())
    links = [link for link in reader.walk(begin) if link.header.commit_ts_us_min <= time_us]
    for link in reversed(links):
        for end_lsn, commit_ts_us in reversed(_transactions(reader, link)):
            if commit_ts_us <= time_us:
                return Offset.whole(end_lsn)
    return begin


def _transactions(reader: Reader, link: Link) -> list[tuple[int, int]]:
    """End and commit time of the transactions that a link adds."""
    found = reader.read(link).frames.transactions
    both = zip(found.end_lsn.tolist(), found.commit_ts_us.tolist(), strict=True)
    return [(end_lsn, time_us) for end_lsn, time_us in both if end_lsn > link.start]


def _weight(link: Link, wanted: Wanted) -> Weight:
    """How many wanted changes a segment holds at most, and about how many bytes they take."""
    header = link.header
    changes = sum(use.change_count for use in header.relations if wanted(use.relation))
    return Weight(changes, link.data_bytes * changes // max(header.change_count, 1))


def _part_pieces(header: Header, after: Offset, upto: Offset) -> Iterator[Piece]:
    for part in header.parts:
        if not part.change_count:
            continue
        first = Offset(header.end, part.first_ordinal)
        last = Offset(header.end, part.first_ordinal + part.change_count - 1)
        if last > after and first <= upto:
            transaction = OpenPart(
                header.end, header.commit_ts_us_min, header.xid, part.first_ordinal
            )
            yield Piece(
                part.key,
                max(after, just_before(first)),
                min(upto, last),
                part.data_bytes,
                header.writer,
                transaction,
            )
