"""Sums of row hashes: equal for equal rows, whatever their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.verify.hashing import Hashes

Cell: TypeAlias = tuple[int, int]
"""A range and a slot in it."""


@dataclass(slots=True)
class Sums:
    """How many rows there are in each place, and the sum of their hashes without its overflow."""

    counts: NDArray[np.int64]
    totals: NDArray[np.uint64]

    @classmethod
    def zero(cls, *places: int) -> Sums:
        """Nothing in any place."""
        return cls(np.zeros(places, np.int64), np.zeros(places, np.uint64))

    def add_rows(self, places: NDArray[np.int64], hashes: Hashes) -> None:
        """Add one row each to these places, which count through all dimensions."""
        np.add.at(self.counts.reshape(-1), places, 1)
        np.add.at(self.totals.reshape(-1), places, hashes)

    def add_sum(self, place: tuple[int, ...], count: int, total: int) -> None:
        """Add what another has summed up."""
        self.counts[place] += count
        self.totals[place] += np.uint64(total & 0xFFFF_FFFF_FFFF_FFFF)

    def over_slots(self) -> Sums:
        """The sums of ranges, from those of cells."""
        return Sums(self.counts.sum(axis=1), self.totals.sum(axis=1, dtype=np.uint64))

    def unlike(self, other: Sums) -> NDArray[np.int64]:
        """The places in which the two differ."""
        same = (self.counts == other.counts) & (self.totals == other.totals)
        return np.flatnonzero(~same)

    @property
    def row_count(self) -> int:
        """Of all places."""
        return int(self.counts.sum())


def unlike_cells(
    ours: Mapping[Cell, tuple[int, int]], theirs: Sums, ranges: NDArray[np.int64]
) -> list[tuple[Cell, int]]:
    """The cells of these ranges in which the two differ, each with the larger count of rows."""
    found = []
    for number in ranges.tolist():
        for slot in range(theirs.counts.shape[1]):
            cell = (number, slot)
            count, total = ours.get(cell, (0, 0))
            lake_count = int(theirs.counts[cell])
            if (count, total) != (lake_count, int(theirs.totals[cell])):
                found.append((cell, max(count, lake_count)))
    return found
