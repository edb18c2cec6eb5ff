"""What came of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.verify.difference import Difference, RangeDifference


@dataclass(frozen=True, slots=True)
class TableResult:
    """Whether a lake table is equal to its source, and if not, where.

    `ranges` has every range that differs, `differences` the first rows in them, up to a limit.
    `problem` says why rows could not be compared at all, or what is odd about the table. A column
    that only the lake has is no difference: the source may have dropped it; one that only the
    source has counts as NULL, as long as no row has come with it.
    """

    table: str
    source_rows: int
    lake_rows: int
    equal: bool
    ranges: tuple[RangeDifference, ...] = ()
    differences: tuple[Difference, ...] = ()
    problem: str = ""
