"""Which part of the chain has been merged, from the names of the merged segments alone.

Two mergers at work at the same time may have made ranges that overlap: each of them is right, and
any one that covers a position will do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Self

from tailrace.log import layout
from tailrace.model import Lsn
from tailrace.storage import Entry


class Ranges:
    """Merged ranges, searched by position."""

    def __init__(self, ranges: Iterable[tuple[Lsn, Lsn]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _ in self._ranges]
        self._reach = list(accumulate((end for _, end in self._ranges), max))

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """The ranges that a listing of the merged level shows."""
        return cls(layout.range_of(entry.key) for entry in entries)

    def around(self, position: Lsn) -> tuple[Lsn, Lsn] | None:
        """A range with `start <= position < end`, or None."""
        place = bisect_right(self._starts, position) - 1
        while place >= 0 and self._reach[place] > position:
            if self._ranges[place][1] > position:
                return self._ranges[place]
            place -= 1
        return None
