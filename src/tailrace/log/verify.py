"""Reads the whole log and checks what readers rely on: chain, checksums, headers, order and bases.

It goes on after damage, so that one look finds all of it, and it may run beside capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from tailrace.errors import LogError, OffsetOutOfRange, SegmentCorrupt, StoreError
from tailrace.log import layout, segment
from tailrace.log.header import Header, RelationUse
from tailrace.log.heading import head_part, head_parts, head_transactions
from tailrace.log.offsets import ChangeOffsets
from tailrace.log.reader import Link, Reader
from tailrace.log.relations import Version, follow
from tailrace.log.verify_bases import verify_bases
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectMissing, Store

_NOWHERE: Final = Lsn(0)


@dataclass(slots=True)
class Verification:
    """What was read and what is wrong with it; no problems means the log is sound."""

    segment_count: int = 0
    base_count: int = 0
    transaction_count: int = 0
    change_count: int = 0
    data_bytes: int = 0
    start: Lsn = _NOWHERE
    end: Lsn = _NOWHERE
    problems: list[str] = field(default_factory=list)


def verify(store: Store) -> Iterator[Verification]:
    """Check segment by segment; yields the same, growing result after each one.

    Raises LogError if there is no log, StoreError if it cannot be read just now.
    """
    result = Verification()
    reader = Reader(store)
    try:
        result.start = reader.begin()
        genesis = segment.read(store, layout.GENESIS).header
    except SegmentCorrupt as error:
        result.problems.append(str(error))
        yield result
        return
    position: Lsn | None = result.start
    while position is not None:
        result.end = position
        try:
            for link in reader.walk(Offset.whole(position)):
                _check(reader, link, genesis, result)
                yield result
            position = None
        except ObjectMissing:
            # Merged away between two looks; if it is gone for good, the next walk says so.
            position = result.end
            reader.forget()
        except StoreError:
            raise
        except OffsetOutOfRange:
            position = reader.begin()
        except LogError as error:
            result.problems.append(str(error))
            position = _next_start(store, result.end)
    for problem in verify_bases(store, begin=reader.begin()):
        result.base_count += 1
        result.problems += [problem] if problem else []
        yield result
    yield result


def _next_start(store: Store, position: Lsn) -> Lsn | None:
    """Where the chain can be taken up again after damage at `position`."""
    levels = (layout.SEGMENTS, layout.MERGED)
    starts = (layout.position_of(entry.key) for level in levels for entry in store.list(level))
    return min((start for start in starts if start > position), default=None)


def _check(reader: Reader, link: Link, genesis: Header, result: Verification) -> None:
    header = link.header
    if header.source.system_id != genesis.source.system_id:
        result.problems.append(f"{link.key} comes from another database system")
    try:
        frames = reader.read(link).frames
        expected = (
            _parts_header(reader.store, header, frames) if header.parts else _header(header, frames)
        )
        wrong = [
            f.name for f in fields(Header) if _value(expected, f.name) != _value(header, f.name)
        ]
        if wrong:
            result.problems.append(f"{link.key} does not hold what its header says: {wrong[0]}")
    except SegmentCorrupt as error:
        named = str(error) if link.key in str(error) else f"{link.key}: {error}"
        result.problems.append(named)
    result.segment_count += 1
    result.transaction_count += header.transaction_count
    result.change_count += header.change_count
    result.data_bytes += link.data_bytes
    result.end = header.end


def _value(header: Header, name: str) -> object:
    if name != "relations":
        return getattr(header, name)
    # Whether a use is an initial one depends on what was merged.
    return [(use.frame, use.relation, use.since, use.change_count) for use in header.relations]


def _header(header: Header, frames: Frames) -> Header:
    """The header that these frames must have."""
    offsets = ChangeOffsets.of(frames)
    return head_transactions(
        frames,
        offsets,
        kind=header.kind,
        source=header.source,
        writer=header.writer,
        start=header.start,
        relations=_uses(header, frames, offsets),
        note=header.note,
    )


def _parts_header(store: Store, header: Header, frames: Frames) -> Header:
    """The header that these parts must have together."""
    uses = []
    ordinal = 0
    for part in header.parts:
        try:
            found = segment.read(store, part.key)
        except ObjectMissing as error:
            raise SegmentCorrupt(f"{part.key}, which it names, is missing") from error
        offsets = ChangeOffsets.of_part(found.frames, first_ordinal=ordinal)
        expected = head_part(
            found.frames,
            source=header.source,
            writer=header.writer,
            start=header.start,
            xid=header.xid,
            relations=_uses(found.header, found.frames, offsets),
        )
        size = (part.first_ordinal, part.change_count, part.data_bytes)
        if found.header != expected or size != (
            ordinal,
            expected.change_count,
            expected.data_bytes,
        ):
            raise SegmentCorrupt(f"{part.key} is not the part that its segment names")
        uses.append(found.header.relations)
        ordinal += part.change_count
    return head_parts(
        frames,
        source=header.source,
        writer=header.writer,
        start=header.start,
        xid=header.xid,
        parts=header.parts,
        uses=tuple(uses),
        note=header.note,
    )


def _uses(header: Header, frames: Frames, offsets: ChangeOffsets) -> tuple[RelationUse, ...]:
    initial = {
        use.relation.oid: Version(use.frame, use.relation)
        for use in header.relations
        if use.initial
    }
    return follow(frames, offsets, in_force=initial, known=header.versions).uses
