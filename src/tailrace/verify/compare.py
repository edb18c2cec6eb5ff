"""Compares two sides of one table: sums of ranges first, then of the cells of those ranges that
differ, then row by row what is in the cells that differ.

The source sums up while the lake does, each on a core of its own. Equal tables are read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tailrace.verify.difference import Found, RangeDifference, differences
from tailrace.verify.lake import LakeSide
from tailrace.verify.ranges import Bounds
from tailrace.verify.shape import Shape
from tailrace.verify.source import SourceSide
from tailrace.verify.sums import Cell, unlike_cells

_ROWS_AT_ONCE: Final = 100_000
"""About so many rows of a side are held in memory, to be compared one by one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two sides differ; `cells` are the places of all differences, each with the count of
    its rows.
    """

    source_rows: int
    lake_rows: int
    bounds: Bounds
    ranges: tuple[RangeDifference, ...]
    cells: tuple[tuple[Cell, int], ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.cells


def compare(source: SourceSide, lake: LakeSide) -> Comparison:
    """Find the cells that differ; raises SourceError, SinkError."""
    bounds = lake.bounds()
    with ThreadPoolExecutor(1, thread_name_prefix="tailrace-verify") as pool:
        summing = pool.submit(source.ranges, bounds)
        cells = lake.cells(bounds)
        ours = summing.result()
    theirs = cells.over_slots()
    unlike = ours.unlike(theirs)
    found: list[tuple[Cell, int]] = []
    if len(unlike):
        found = unlike_cells(source.cells(bounds, unlike.tolist()), cells, unlike)
    return Comparison(
        source_rows=ours.row_count,
        lake_rows=theirs.row_count,
        bounds=bounds,
        ranges=tuple(
            RangeDifference.of(bounds, n, int(ours.counts[n]), int(theirs.counts[n]))
            for n in unlike.tolist()
        ),
        cells=tuple(found),
    )


def differing_rows(
    source: SourceSide, lake: LakeSide, found: Comparison, shape: Shape
) -> Iterator[Found]:
    """Every difference, in the order of the ranges, read from both sides as far as it is asked
    for.
    """
    for cells in _groups(found):
        ours = source.rows(found.bounds, cells)
        yield from differences(ours, lake.rows(found.bounds, cells), shape)


def _groups(found: Comparison) -> Iterator[list[Cell]]:
    group: list[Cell] = []
    row_count = 0
    for cell, count in found.cells:
        if group and row_count + count > _ROWS_AT_ONCE:
            yield group
            group, row_count = [], 0
        group.append(cell)
        row_count += count
    if group:
        yield group
