"""The files of a lake table, and whether they are worth writing anew.

A batch of neighbouring keys costs as much as the files that its range of keys touches. So files
should be of one size, and few of them should overlap in the column that the rows are ordered by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.delta.target import FILE_BYTES, Target

_SMALL_BYTES: Final = FILE_BYTES // 4
_SMALL_FILES_MAX: Final = 8
_DEPTH_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Files:
    """`small_count` of them are far below the size that is aimed at; at one value of the first
    column of their order, `depth` files overlap on average.
    """

    count: int
    small_count: int
    depth: float

    @classmethod
    def of(cls, target: Target, column: str | None) -> Files:
        """Look at the statistics in the table's log."""
        actions = pa.table(target.table.get_add_actions(flatten=True))
        sizes = actions.column("size_bytes").to_numpy()
        low, high = f"min.{column}", f"max.{column}"
        depth = 1.0
        if column is not None and {low, high} <= set(actions.column_names):
            depth = _depth(actions.column(low), actions.column(high))
        return cls(len(sizes), int((sizes < _SMALL_BYTES).sum()), depth)

    @property
    def is_out_of_order(self) -> bool:
        """Whether a batch of neighbouring keys would touch many files."""
        return self.depth > _DEPTH_MAX

    @property
    def are_untidy(self) -> bool:
        """Whether writing them anew pays."""
        return self.small_count > _SMALL_FILES_MAX or self.is_out_of_order


def _depth(low: pa.ChunkedArray[Any], high: pa.ChunkedArray[Any]) -> float:
    """The mean number of files whose range holds the lowest value of a file."""
    known = pc.and_(low.is_valid(), high.is_valid())
    chunks = [*low.filter(known).chunks, *high.filter(known).chunks]
    if not any(len(chunk) for chunk in chunks):
        return 1.0
    both = pa.concat_arrays(chunks)
    ranks = pc.rank(both, sort_keys="ascending", tiebreaker="dense").to_numpy()
    lows, highs = np.split(ranks, 2)
    begun = np.searchsorted(np.sort(lows), lows, side="right")
    ended = np.searchsorted(np.sort(highs), lows, side="left")
    return float((begun - ended).mean())
