"""Drops the oldest segments, by age and by size, but never what a registered reader still needs,
nor what a new one will: all that follows the newest bases.

The frontier moves first and the objects go afterwards, so a reader that falls off is told "offset
out of range" and never skips. A hard limit, if there is one, wins over slow readers and old bases.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.bases import newest_positions
from tailrace.log.gone import note_gone
from tailrace.log.layout import FrontierKind
from tailrace.log.marks import move_frontier, raise_mark
from tailrace.log.old_bases import old_base_keys
from tailrace.log.ranges import Ranges
from tailrace.log.reader import Reader
from tailrace.log.wanted import WantedBase, want_base
from tailrace.model import Lsn
from tailrace.storage import ObjectMissing, Store

logger = logging.getLogger(__name__)

ORPHAN_AGE_S: Final = 3600.0
"""Parts that no segment names are deleted when they are this old: their transaction was sent
again.
"""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Ages count from when the store took an object, bytes as stored. None means without limit."""

    age_s: float | None = None
    bytes_max: int | None = None
    hard_bytes_max: int | None = None


def put_reader_position(store: Store, name: str, position: Lsn) -> None:
    """Register a reader, or move it: it needs what ends after `position`. The highest counts."""
    raise_mark(store, layout.reader_key(name, position))


def set_reader_position(store: Store, name: str, position: Lsn) -> None:
    """Move a reader, back as well: it takes up what it had passed over.

    A listing that runs meanwhile may miss it. So a reader goes back only as far as the newest bases
    stand: what follows those is kept for their own sake.
    """
    put_reader_position(store, name, position)
    key, entries = layout.reader_key(name, position), store.list(layout.reader_prefix(name))
    store.delete(entry.key for entry in entries if entry.key > key)


def reader_positions(store: Store) -> dict[str, Lsn]:
    """How far each registered reader has got."""
    positions: dict[str, Lsn] = {}
    for entry in store.list(layout.READERS):
        name = entry.key.split("/")[1]
        positions[name] = max(positions.get(name, Lsn(0)), layout.position_of(entry.key))
    return positions


def retain(
    store: Store, policy: RetentionPolicy, *, now_s: float, tables: Container[int] | None = None
) -> Lsn:
    """Drop what the policy lets go; returns where the log starts afterwards. Only the bases of
    `tables`, by oid, are kept for readers to come; None is all.
    """
    begin = Reader(store).begin()
    bases = newest_positions(store)
    needed = {oid: at for oid, at in bases.items() if tables is None or oid in tables}
    slowest = min([*reader_positions(store).values(), *needed.values()], default=None)
    start = _cut(_stored_chain(store), policy, slowest=slowest, now_s=now_s)
    if start > begin:
        for oid in sorted(oid for oid, at in needed.items() if at < start):
            # Without what follows its base, nobody could start from it.
            want_base(store, WantedBase(oid, start, "the log has grown past its hard limit"))
        move_frontier(store, FrontierKind.RETAINED, start)
        logger.info("old segments dropped start=%s", start)
    failpoint("retention.before_delete")
    start = max(start, begin)
    store.delete(_dead_keys(store, start))
    store.delete(_orphan_parts(store, now_s))
    store.delete(old_base_keys(store, now_s=now_s, tables=tables))
    if tables is not None:
        note_gone(store, {oid for oid in newest_positions(store) if oid not in tables})
    return start


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the names and sizes of the objects tell about one segment of the chain."""

    start: Lsn
    size: int
    modified_s: float


def _stored_chain(store: Store) -> list[_Stored]:
    """The chain in order, from three listings and without a look at any header."""
    small = store.list(layout.SEGMENTS)
    merged = store.list(layout.MERGED)
    parts: Counter[Lsn] = Counter()
    for entry in store.list(layout.PARTS):
        parts[layout.position_of(entry.key)] += entry.size
    ranges = Ranges.of(merged)
    living = [
        entry
        for entry in small
        if entry.key != layout.GENESIS and ranges.around(layout.position_of(entry.key)) is None
    ]
    chain = []
    for entry in (*merged, *living):
        start = layout.position_of(entry.key)
        chain.append(_Stored(start, entry.size + parts[start], entry.modified_s))
    return sorted(chain, key=lambda stored: stored.start)


def _cut(
    chain: list[_Stored], policy: RetentionPolicy, *, slowest: Lsn | None, now_s: float
) -> Lsn:
    """Where the log may start; 0 if nothing may go. The last segment always stays."""
    cut = Lsn(0)
    left = sum(stored.size for stored in chain)
    for stored, successor in pairwise(chain):
        is_old = policy.age_s is not None and stored.modified_s < now_s - policy.age_s
        is_over = policy.bytes_max is not None and left > policy.bytes_max
        is_needed = slowest is not None and successor.start > slowest
        is_far_over = policy.hard_bytes_max is not None and left > policy.hard_bytes_max
        if not (is_far_over or ((is_old or is_over) and not is_needed)):
            break
        cut = successor.start
        left -= stored.size
    return cut


def _dead_keys(store: Store, start: Lsn) -> Iterator[str]:
    for level in (layout.SEGMENTS, layout.PARTS):
        for entry in store.list(level):
            if entry.key != layout.GENESIS and layout.position_of(entry.key) < start:
                yield entry.key
    for entry in store.list(layout.MERGED):
        if layout.range_of(entry.key)[1] <= start:
            yield entry.key


def _orphan_parts(store: Store, now_s: float) -> Iterator[str]:
    named: dict[Lsn, set[str] | None] = {}
    for entry in store.list(layout.PARTS):
        start = layout.position_of(entry.key)
        if start not in named:
            named[start] = _parts_named_at(store, start)
        keys = named[start]
        if keys is not None and entry.key not in keys and entry.modified_s < now_s - ORPHAN_AGE_S:
            yield entry.key


def _parts_named_at(store: Store, start: Lsn) -> set[str] | None:
    """The parts that the segment at `start` names; None while that segment is still to come."""
    try:
        header = segment.read_header(store, layout.segment_key(start))
    except ObjectMissing:
        is_merged = Ranges.of(store.list(layout.MERGED)).around(start) is not None
        return set() if is_merged else None
    return {part.key for part in header.parts}
