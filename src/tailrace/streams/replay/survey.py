"""How much a range of the log holds, from headers alone wherever possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tailrace.decode.times import committed_between
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.log.reader import Link
from tailrace.model import Offset, Relation
from tailrace.spark.planning import decode_pieces
from tailrace.streams.replay.window import Window


def survey(reader: Reader, window: Window) -> Mapping[str, int]:
    """By `schema.name`, how many changes a replay of the range would deliver. A stream's `where`
    and a key may leave out some of them.
    """
    found: Counter[str] = Counter({table.qualified: 0 for table in window.tables})
    if window.is_empty:
        return found
    for link in reader.walk(window.start):
        if Offset.whole(link.start) >= window.end:
            break
        counts = _within(link, window)
        found.update(_decoded(reader, link, window) if counts is None else counts)
    return found


def _names(window: Window) -> dict[int, tuple[str, Offset]]:
    return {table.oid: (table.qualified, table.position) for table in window.tables}


def _within(link: Link, window: Window) -> Counter[str] | None:
    """The counts of its header, if all of the segment is meant."""
    header, names = link.header, _names(window)
    begins = max([window.start, *(position for _, position in names.values())])
    is_inside = begins <= Offset.whole(link.start) and Offset.whole(header.end) <= window.end
    if window.between_us is not None:
        first, last = window.between_us
        is_inside &= first <= header.commit_ts_us_min and header.commit_ts_us_max <= last
    # Of a merged segment that was met in the middle, the header counts too much.
    if not is_inside or header.start < link.start:
        return None
    counts: Counter[str] = Counter()
    for use in header.relations:
        if names.get(use.relation.oid, ("",))[0] == use.relation.qualified:
            counts[use.relation.qualified] += use.change_count
    return counts


def _decoded(reader: Reader, link: Link, window: Window) -> Counter[str]:
    names = _names(window)
    counts: Counter[str] = Counter()
    after = max(window.start, Offset.whole(link.start))
    upto = min(window.end, Offset.whole(link.header.end))

    def wanted(relation: Relation) -> bool:
        name, position = names.get(relation.oid, ("", upto))
        return name == relation.qualified and position < upto

    planned = pieces(reader, after, upto, wanted=wanted)
    for changes in decode_pieces(reader.store, planned, wanted, None):
        if window.between_us is not None:
            changes = committed_between(changes, *window.between_us)
        counts[changes.relation.qualified] += changes.rows.num_rows
    return counts
