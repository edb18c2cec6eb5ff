"""Drops the oldest segments, by age and by size, but never what a registered reader still needs.

The frontier moves first and the objects go afterwards, so a reader that falls off is told "offset
out of range" and never skips. A hard limit, if there is one, wins over slow readers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.merge import move_frontier
from tailrace.log.reader import Link, Reader
from tailrace.model import Lsn, Offset
from tailrace.storage import ObjectExists, ObjectMissing, Store

logger = logging.getLogger(__name__)

ORPHAN_AGE_S: Final = 3600.0
"""Parts that no segment names are deleted when they are this old: their transaction was sent
again.
"""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """None means without limit."""

    age_s: float | None = None
    bytes_max: int | None = None
    hard_bytes_max: int | None = None


def put_reader_position(store: Store, name: str, position: Lsn) -> None:
    """Register a reader, or move it; the highest position counts."""
    prefix = f"{layout.READERS}{name}/"
    key = f"{prefix}{position.hex16}"
    with suppress(ObjectExists):
        store.put_new(key, b"")
    store.delete(entry.key for entry in store.list(prefix) if entry.key < key)


def reader_positions(store: Store) -> dict[str, Lsn]:
    """How far each registered reader has got."""
    positions: dict[str, Lsn] = {}
    for entry in store.list(layout.READERS):
        name = entry.key.split("/")[1]
        positions[name] = max(positions.get(name, Lsn(0)), layout.position_of(entry.key))
    return positions


def drop_reader(store: Store, name: str) -> None:
    """Retention waits for this reader no longer."""
    store.delete(entry.key for entry in store.list(f"{layout.READERS}{name}/"))


def retain(store: Store, policy: RetentionPolicy, *, now_s: float) -> Lsn:
    """Drop what the policy lets go; returns where the log starts afterwards."""
    reader = Reader(store)
    begin = reader.begin()
    modified_s = {
        entry.key: entry.modified_s
        for level in (layout.SEGMENTS, layout.MERGED)
        for entry in store.list(level)
    }
    links = list(reader.walk(Offset.whole(begin)))
    start = _cut(
        links,
        modified_s,
        policy,
        slowest=min(reader_positions(store).values(), default=None),
        now_s=now_s,
    )
    if start > begin:
        move_frontier(store, "retained", start)
        logger.info("old segments dropped start=%s", start)
    failpoint("retention.before_delete")
    start = max(start, begin)
    store.delete(_dead_keys(store, start))
    store.delete(_orphan_parts(store, now_s))
    return start


def _cut(
    links: list[Link],
    modified_s: dict[str, float],
    policy: RetentionPolicy,
    *,
    slowest: Lsn | None,
    now_s: float,
) -> Lsn:
    """The end of the newest segment that may go; 0 if none may. The last segment always stays."""
    cut = Lsn(0)
    left = sum(link.data_bytes for link in links)
    for link in links[:-1]:
        is_old = policy.age_s is not None and modified_s.get(link.key, now_s) < now_s - policy.age_s
        is_over = policy.bytes_max is not None and left > policy.bytes_max
        is_needed = slowest is not None and link.header.end > slowest
        is_far_over = policy.hard_bytes_max is not None and left > policy.hard_bytes_max
        if not (is_far_over or ((is_old or is_over) and not is_needed)):
            break
        cut = link.header.end
        left -= link.data_bytes
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
        merged = (layout.range_of(entry.key) for entry in store.list(layout.MERGED))
        return set() if any(first <= start < end for first, end in merged) else None
    return {part.key for part in header.parts}
