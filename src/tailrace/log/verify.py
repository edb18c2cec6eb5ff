"""Reads the whole log and checks what readers rely on: chain, checksums, counts and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tailrace.errors import LogError, SegmentCorrupt
from tailrace.log import layout, segment
from tailrace.log.header import Header
from tailrace.log.reader import Link, Reader
from tailrace.log.relations import ChangeOffsets
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectMissing, Store

_NOWHERE: Final = Lsn(0)


@dataclass(slots=True)
class Verification:
    """What was read and what is wrong with it; no problems means the log is sound."""

    segment_count: int = 0
    transaction_count: int = 0
    change_count: int = 0
    data_bytes: int = 0
    start: Lsn = _NOWHERE
    end: Lsn = _NOWHERE
    problems: list[str] = field(default_factory=list)


def verify(store: Store) -> Iterator[Verification]:
    """Check segment by segment; yields the same, growing result after each one."""
    result = Verification()
    reader = Reader(store)
    try:
        result.start = result.end = reader.begin()
        genesis = segment.read_header(store, layout.GENESIS)
        for link in reader.walk(Offset.whole(result.start)):
            _check(store, link, genesis, result)
            yield result
    except LogError as error:
        result.problems.append(str(error))
    yield result


def _check(store: Store, link: Link, genesis: Header, result: Verification) -> None:
    header = link.header
    problem = result.problems.append
    if header.start != result.end:
        problem(f"{link.key} starts at {header.start}, its predecessor ends at {result.end}")
    if header.source.system_id != genesis.source.system_id:
        problem(f"{link.key} comes from another database system")
    try:
        frames = segment.read(store, link.key).frames
        changes = _check_order(link, frames, result) + _check_parts(store, header)
    except (SegmentCorrupt, ObjectMissing) as error:
        problem(str(error))
    else:
        if changes != header.change_count:
            problem(f"{link.key} holds {changes} changes, its header says {header.change_count}")
    result.segment_count += 1
    result.transaction_count += header.transaction_count
    result.change_count += header.change_count
    result.data_bytes += link.data_bytes
    result.end = header.end


def _check_order(link: Link, frames: Frames, result: Verification) -> int:
    """Transactions end in rising order, within the range; returns the number of changes."""
    header, transactions = link.header, frames.transactions()
    ends = transactions.end_lsn
    if len(ends) != header.transaction_count:
        result.problems.append(f"{link.key} does not hold {header.transaction_count} transactions")
    elif len(ends) and not (
        (np.diff(ends) > 0).all() and ends[0] > header.start and ends[-1] == header.end
    ):
        result.problems.append(f"{link.key} holds transactions out of order or out of its range")
    elif header.first is not None and not header.parts:
        changing = frames.change_counts().nonzero()[0]
        if ChangeOffsets.of(frames).at(int(changing[0])) != header.first:
            result.problems.append(f"{link.key} does not begin at {header.first}")
    return int(frames.change_counts().sum())


def _check_parts(store: Store, header: Header) -> int:
    changes = 0
    for part in header.parts:
        found = segment.read(store, part.key)
        if part.first_ordinal != changes or found.header.change_count != part.change_count:
            raise SegmentCorrupt(f"{part.key} is not the part that its segment names")
        changes += int(found.frames.change_counts().sum())
    return changes
