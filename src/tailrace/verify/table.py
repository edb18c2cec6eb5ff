"""One table of the source and its lake table, compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tailrace.postgres.session import Connection
from tailrace.verify.compare import Comparison, compare, differing_rows
from tailrace.verify.lake import LakeRows, LakeSide
from tailrace.verify.result import TableResult
from tailrace.verify.shape import Shape
from tailrace.verify.source import SourceSide, SourceTable, hashes_hexed
from tailrace.where import Predicate

DIFFERENCES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """A table and its lake table, ready to be compared."""

    source: SourceSide
    lake: LakeSide
    shape: Shape
    missing: tuple[str, ...]

    @classmethod
    def of(
        cls,
        connection: Connection,
        table: SourceTable,
        rows: LakeRows,
        *,
        chosen: Collection[str] | None = None,
        own_key: Sequence[str] | None = None,
        where: Predicate | None = None,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> Pair:
        """`connection` is inside a transaction whose snapshot is compared."""
        is_hexed = hashes_hexed(connection)
        shape = table.shape(rows.columns, chosen=chosen, own_key=own_key, is_hexed=is_hexed)
        return cls(
            SourceSide(connection, table, shape, where=where, on_rows=on_rows),
            LakeSide(rows, shape, on_rows=on_rows),
            shape,
            tuple(name for name in shape.names if name not in rows.columns),
        )

    def compare(self) -> Comparison:
        """Find where the two differ."""
        return compare(self.source, self.lake)

    def tell(self, name: str, found: Comparison) -> TableResult:
        """What was found, with its first rows."""
        rows = differing_rows(self.source, self.lake, found, self.shape)
        missing = ", ".join(self.missing)
        return TableResult(
            table=name,
            source_rows=found.source_rows,
            lake_rows=found.lake_rows,
            equal=found.is_equal,
            ranges=found.ranges,
            differences=tuple(row.difference for row in islice(rows, DIFFERENCES_MAX)),
            problem=f"the lake table has no column {missing}" if missing else "",
        )
