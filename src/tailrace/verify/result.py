"""What came of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.model import Lsn
from tailrace.verify.difference import Difference, RangeDifference


@dataclass(frozen=True, slots=True)
class TableResult:
    """Whether a lake table is equal to its source, and if not, where.

    `ranges` has every range that differs, `differences` the first rows in them, up to a limit.
    `problem` says why rows could not be compared at all, or what is odd about the table. A column
    that only the lake has is no difference: the source may have dropped it; one that only the
    source has counts as NULL, as long as no row has come with it. `is_doubtful` if another try may
    tell more.
    """

    table: str
    source_rows: int
    lake_rows: int
    equal: bool
    ranges: tuple[RangeDifference, ...] = ()
    differences: tuple[Difference, ...] = ()
    problem: str = ""
    is_doubtful: bool = False
    repaired_rows: int = 0


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What came of comparing a stream's tables at one position."""

    stream: str
    position: Lsn
    began_s: float
    seconds: float
    tables: tuple[TableResult, ...]

    @property
    def equal(self) -> bool:
        """Whether every table is equal."""
        return all(table.equal for table in self.tables)
