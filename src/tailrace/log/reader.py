"""Reads the chain from any position, beside a writer, a merger and retention at work.

A reader never sees a gap or a double. It follows names: the successor of a segment that ends at E
is `segments/E`, or the merged segment that covers E. It looks at the small level first and at the
merged level second, because the merger puts before it deletes; an object that is missing on the
way makes it look again. What retention has dropped is an OffsetOutOfRange, what is missing
otherwise a SegmentMissing: never a skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogError, OffsetOutOfRange, SegmentMissing
from tailrace.log import layout, segment
from tailrace.log.header import Header
from tailrace.log.tip import Tip, frontier, newest_progress, read_genesis
from tailrace.model import Lsn, Offset
from tailrace.storage import ObjectMissing, Store

_HEADERS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Link:
    """One segment of the chain, in its small or its merged form."""

    key: str
    header: Header

    @property
    def data_bytes(self) -> int:
        """The size of its frames, parts included."""
        return self.header.data_bytes + sum(part.data_bytes for part in self.header.parts)


class Reader:
    """A view of the log that remembers headers, which never change. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._headers: dict[str, Header] = {}

    def begin(self) -> Lsn:
        """Where the log starts: at its genesis, or where retention has cut it."""
        genesis = read_genesis(self.store)
        if genesis is None:
            raise LogError(
                f"there is no log at {self.store.url}",
                hint="check log.url, and start `tailrace capture` or `tailrace run` first",
            )
        return max(genesis.end, self._retained())

    def tip(self) -> Tip:
        """Where the log ends now."""
        progress = newest_progress(self.store)
        start = max(self.begin(), progress.segment_end if progress else Lsn(0))
        source = progress.source if progress else self._header(layout.GENESIS).source
        while (link := self._successor(start)) is not None:
            start, source = link.header.end, link.header.source
        return Tip(source, start, max(start, progress.position) if progress else start)

    def walk(self, after: Offset) -> Iterator[Link]:
        """The segments that hold anything after `after`, in order, to the end of the log."""
        begin = self.begin()
        # Before the genesis there was nothing, so a position there misses nothing.
        at = max(after.commit_lsn - (0 if after.is_whole else 1), self._header(layout.GENESIS).end)
        if at < begin:
            raise OffsetOutOfRange(
                f"the log starts at {begin}, after {after}",
                hint="retention has dropped these changes: start again from the log's beginning",
            )
        position = self._boundary_before(Lsn(at), begin)
        while (link := self._successor(position)) is not None:
            position = link.header.end
            if position > at:
                yield link

    def _boundary_before(self, position: Lsn, begin: Lsn) -> Lsn:
        """The highest place at or before `position` at which a segment is known to start."""
        small = [layout.position_of(entry.key) for entry in self.store.list(layout.SEGMENTS)]
        merged = [end for _, end in self._merged_ranges()]
        covering = [start for start, end in self._merged_ranges() if start <= position < end]
        return max([begin, *covering, *(at for at in (*small, *merged) if at <= position)])

    def _successor(self, position: Lsn) -> Link | None:
        """The segment that starts at `position`, or the merged one around it; None at the end of
        the log.
        """
        for _ in range(3):
            link = self._link(layout.segment_key(position))
            if link is None and frontier(self.store) > position:
                link = self._merged_around(position)
            if link is not None:
                return link
            if not self._goes_on_after(position):
                return None
            # Something was put or merged between two looks: look again.
        raise SegmentMissing(
            f"{layout.segment_key(position)} is missing, and the log goes on after it",
            hint="run `tailrace log verify`; restore the object from a backup",
        )

    def _merged_around(self, position: Lsn) -> Link | None:
        if position < self._retained():
            raise OffsetOutOfRange(
                f"retention has dropped the changes after {position}",
                hint="start again from the beginning of the log",
            )
        for start, end in self._merged_ranges():
            if start <= position < end:
                return self._link(layout.merged_key(start, end))
        return None

    def _merged_ranges(self) -> list[tuple[Lsn, Lsn]]:
        return [layout.range_of(entry.key) for entry in self.store.list(layout.MERGED)]

    def _goes_on_after(self, position: Lsn) -> bool:
        if self.store.list(layout.SEGMENTS, after=layout.segment_key(position)):
            return True
        progress = newest_progress(self.store)
        return frontier(self.store) > position or (
            progress is not None and progress.segment_end > position
        )

    def _retained(self) -> Lsn:
        entries = self.store.list(layout.frontier_prefix("retained"))
        return max((layout.position_of(entry.key) for entry in entries), default=Lsn(0))

    def _link(self, key: str) -> Link | None:
        try:
            return Link(key, self._header(key))
        except ObjectMissing:
            return None

    def _header(self, key: str) -> Header:
        header = self._headers.get(key)
        if header is None:
            header = segment.read_header(self.store, key)
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            self._headers[key] = header
        return header
