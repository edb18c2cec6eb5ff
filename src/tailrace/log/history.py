"""The chain read backwards, from headers alone: which shape a table had last.

A table that is in use is found in the newest segments, so little of a long log is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.errors import SegmentMissing
from tailrace.log import layout, segment
from tailrace.log.header import Header, RelationUse
from tailrace.log.ranges import Ranges
from tailrace.log.reader import LOOKS_MAX
from tailrace.model import Lsn
from tailrace.storage import ObjectMissing, Store


def headers_back(store: Store) -> Iterator[Header]:
    """The headers of the chain, newest first.

    What is merged away meanwhile is looked for again, and then the merged segment comes whole: what
    it shares with those before it comes twice.
    """
    reached: Lsn | None = None
    looks = 0
    while looks < LOOKS_MAX:
        looks += 1
        try:
            for start, key in _keys_back(store):
                if reached is None or start < reached:
                    header = segment.read_header(store, key)
                    reached, looks = start, 0
                    yield header
            return
        except ObjectMissing as error:
            missing = error
    raise SegmentMissing(str(missing), hint="run `tailrace log verify`") from missing


def uses_back(store: Store, table: str) -> Iterator[RelationUse]:
    """The shapes under which a table (`schema.name`) was changed, newest first."""
    for header in headers_back(store):
        uses = [use for use in header.relations if use.relation.qualified == table]
        yield from sorted(uses, key=lambda use: use.since, reverse=True)


def _keys_back(store: Store) -> list[tuple[Lsn, str]]:
    """Start and name of every living segment, the one that reaches farthest first."""
    # The small level first: what is deleted after this listing is in the merged level by then.
    small = [entry.key for entry in store.list(layout.SEGMENTS) if entry.key != layout.GENESIS]
    merged = [entry.key for entry in store.list(layout.MERGED)]
    ranges = Ranges(layout.range_of(key) for key in merged)
    found = [(layout.range_of(key)[1], layout.position_of(key), key) for key in merged]
    for key in small:
        start = layout.position_of(key)
        if ranges.around(start) is None:
            # Its end is not in its name; it lies after its start, and before the next segment's.
            found.append((Lsn(start + 1), start, key))
    return [(start, key) for _, start, key in sorted(found, reverse=True)]
