"""Reads the chain from any position, beside a writer, a merger and retention at work.

A reader never sees a gap or a double. The chain is contiguous: each position up to its end lies in
exactly one segment, under its own name or inside a merged one. The reader goes from position to
position. Below the merged frontier it takes the merged segment if there is one; else the small one.
The merger puts the merged segment, then moves the frontier, then deletes: so whoever finds a small
one missing looks again, at the frontier and the merged level, and finds it there. What retention
has dropped is an OffsetOutOfRange, what is missing otherwise a SegmentMissing: never a skip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogError, OffsetOutOfRange, SegmentMissing
from tailrace.log import layout, segment
from tailrace.log.header import Header, Note
from tailrace.log.marks import Frontiers, read_frontiers
from tailrace.log.ranges import Ranges
from tailrace.log.segment import Segment
from tailrace.log.tip import Tip, ending_at, newest_progress
from tailrace.model import Lsn, Offset
from tailrace.storage import ObjectMissing, Store

LOOKS_MAX: Final = 4
"""An object goes from its own name to a merged one and from there to nothing: two surprises at
most, and one more for a segment that was put between two looks.
"""

_MISSING_HINT: Final = "run `tailrace log verify`; restore the object from a backup"
_HEADERS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Link:
    """One segment of the chain, in its small or its merged form.

    Of a merged segment only what ends after `start` is meant, if a reader met the small form of
    what comes before.
    """

    key: str
    header: Header
    start: Lsn

    @property
    def data_bytes(self) -> int:
        """The size of its frames, parts included."""
        return self.header.data_bytes + sum(part.data_bytes for part in self.header.parts)


class Reader:
    """A view of the log that remembers headers. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._headers: dict[str, Header] = {}
        self._ends: set[Lsn] = set()
        self._frontiers = Frontiers(Lsn(0), Lsn(0))
        self._merged: Ranges | None = None
        self._last_end: Lsn | None = None
        self._last_note: Note | None = None

    def begin(self) -> Lsn:
        """Where the log starts: at its genesis, or where retention has cut it."""
        self._look()
        return max(self._genesis().end, self._frontiers.retained)

    def tip(self) -> Tip:
        """Where the log ends now."""
        begin = self.begin()
        progress = newest_progress(self.store)
        source, end = self._genesis().source, begin
        if progress is not None:
            source, end = progress.source, max(begin, progress.segment_end)
        self._ends.add(end)
        last: Header | None = None
        while (link := self._around(end)) is not None:
            last, source, end = link.header, link.header.source, link.header.end
        position = max(end, progress.position) if progress is not None else end
        return Tip(source, end, position, self._note_at(end, last))

    def walk(self, after: Offset) -> Iterator[Link]:
        """The segments that hold anything after `after`, in order, to the end of the log."""
        begin = self.begin()
        # Before the genesis there was nothing, so a position there misses nothing.
        at = max(after.commit_lsn - (0 if after.is_whole else 1), self._genesis().end)
        if at < begin:
            raise OffsetOutOfRange(
                f"the log starts at {begin}, after {after}",
                hint="retention has dropped these changes: start from where the log begins; "
                "streams take up their tables anew with `tailrace pipeline --reset`",
            )
        position = Lsn(at)
        while (link := self._around(position)) is not None:
            yield link
            position = link.header.end

    def read(self, link: Link) -> Segment:
        """A link's frames; raises ObjectMissing if it is not under its name any more.

        A writer that was left behind may have put another segment under a name that was merged away
        or dropped.
        """
        found = segment.read(self.store, link.key)
        if found.header != link.header:
            raise ObjectMissing(f"{link.key} is not what it was")
        return found

    def forget(self) -> None:
        """Look at everything again: an object that this reader knew of is gone."""
        self._headers.clear()
        self._ends.clear()
        self._merged = None
        self._look()

    def looking_again(self, plan: Callable[[], Offset]) -> Offset:
        """Make a plan that reads frames; if they are merged away meanwhile, make it anew."""
        for _ in range(LOOKS_MAX):
            try:
                return plan()
            except ObjectMissing as error:
                missing = error
                self.forget()
        raise SegmentMissing(str(missing), hint=_MISSING_HINT) from missing

    def _around(self, position: Lsn) -> Link | None:
        """The segment that holds what follows `position`; None at the end of the log."""
        for look in range(LOOKS_MAX):
            if look:
                self.forget()
            link = self._merged_around(position) or self._small_at(position)
            if link is None and position not in self._ends:
                link = self._small_around(position)
            if link is not None:
                self._ends.add(link.header.end)
                return link
            if position < self._frontiers.retained:
                raise OffsetOutOfRange(
                    f"retention has dropped the changes after {position}",
                    hint="start again from the beginning of the log",
                )
            if not self._goes_on_after(position):
                return None
        raise SegmentMissing(
            f"the segment after {position} is missing, and the log goes on after it",
            hint=_MISSING_HINT,
        )

    def _merged_around(self, position: Lsn) -> Link | None:
        if position >= self._frontiers.merged:
            return None
        if self._merged is None:
            self._merged = Ranges.of(self.store.list(layout.MERGED))
        found = self._merged.around(position)
        return self._link(layout.merged_key(*found), position) if found else None

    def _small_at(self, position: Lsn) -> Link | None:
        return self._link(layout.segment_key(position), position)

    def _small_around(self, position: Lsn) -> Link | None:
        """For a position at which no segment starts: inside one, or past the end."""
        # The frontier is a segment's end: from there on, names below it are of no use.
        frontier = self._frontiers.highest
        floor = frontier if frontier <= position else Lsn(0)
        starts = [layout.position_of(entry.key) for entry in self.store.list(layout.SEGMENTS)]
        start = max((start for start in starts if floor <= start <= position), default=None)
        link = None if start is None else self._link(layout.segment_key(start), position)
        return link if link is not None and link.header.end > position else None

    def _note_at(self, end: Lsn, last: Header | None) -> Note | None:
        """The note at the end of the log; looked for once as long as the end stays where it is."""
        if last is None and end != self._last_end:
            last = ending_at(self.store, end) or self._genesis()
        if last is not None:
            self._last_end, self._last_note = end, last.note
        return self._last_note

    def _goes_on_after(self, position: Lsn) -> bool:
        if self.store.list(layout.SEGMENTS, after=layout.segment_key(position)):
            return True
        progress = newest_progress(self.store)
        return read_frontiers(self.store).highest > position or (
            progress is not None and progress.segment_end > position
        )

    def _look(self) -> None:
        """See how far merger and retention have come."""
        frontiers = read_frontiers(self.store)
        if frontiers != self._frontiers:
            self._frontiers = frontiers
            self._merged = None

    def _genesis(self) -> Header:
        try:
            return self._header(layout.GENESIS)
        except ObjectMissing as error:
            raise LogError(
                f"there is no log at {self.store.url}",
                hint="check log.url, and start `tailrace capture` or `tailrace run` first",
            ) from error

    def _link(self, key: str, position: Lsn) -> Link | None:
        try:
            return Link(key, self._header(key), position)
        except ObjectMissing:
            return None

    def _header(self, key: str) -> Header:
        header = self._headers.get(key)
        if header is None:
            header = segment.read_header(self.store, key)
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
                self._ends.clear()
            self._headers[key] = header
        return header
