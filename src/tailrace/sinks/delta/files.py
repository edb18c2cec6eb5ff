"""The files of a lake table, and whether they are worth writing anew.

A batch of neighbouring keys costs as much as the files that its range of keys touches. So files
should be of one size, and few of them should overlap in the column that the rows are ordered by.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.sinks.delta.target import FILE_BYTES, Target
from tailrace.sinks.keys import Column

_SMALL_BYTES: Final = FILE_BYTES // 4
_SMALL_FILES_MAX: Final = 8
_DEPTH_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Files:
    """Their sizes and, where statistics give them, the least and greatest value of the first
    column of their order; NULL where they do not.
    """

    sizes: NDArray[np.int64]
    low: Column
    high: Column

    @classmethod
    def of(cls, target: Target, column: str | None) -> Files:
        """Look at the statistics in the table's log."""
        actions = pa.table(target.table.get_add_actions(flatten=True))
        nothing = pa.chunked_array([pa.nulls(actions.num_rows)])
        low, high = (
            actions.column(name) if name in actions.column_names else nothing
            for name in (f"min.{column}", f"max.{column}")
        )
        return cls(actions.column("size_bytes").to_numpy(), low, high)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.sizes)

    @property
    def small_count(self) -> int:
        """How many are far below the size that is aimed at."""
        return int((self.sizes < _SMALL_BYTES).sum())

    @property
    def depth(self) -> float:
        """How many of them hold one value of the column, on average."""
        return float(self._depths().mean())

    @property
    def deepest(self) -> int:
        """How many of them hold one value of the column, at most."""
        return int(self._depths().max())

    @property
    def has_ranges(self) -> bool:
        """Whether the range of each file is known."""
        return not (self.low.null_count or self.high.null_count)

    def begins(self) -> list[object]:
        """The least values, each once, rising."""
        return list(self.low.drop_null().unique().sort().to_pylist())

    def touched_share(self, values: Column) -> float:
        """The share of the bytes that lies in files whose range holds one of the values; all, if
        their ranges are not known.
        """
        if not self.has_ranges or not self.count:
            return 1.0
        wanted: list[Any] = values.unique().sort().to_pylist()
        touched = [
            bisect_left(wanted, low) < bisect_right(wanted, high)
            for low, high in zip(self.low.to_pylist(), self.high.to_pylist(), strict=True)
        ]
        return float(self.sizes[np.array(touched)].sum() / self.sizes.sum())

    @property
    def is_out_of_order(self) -> bool:
        """Whether a batch of neighbouring keys would touch many files."""
        return self.depth > _DEPTH_MAX

    @property
    def are_untidy(self) -> bool:
        """Whether writing them anew pays."""
        return self.small_count > _SMALL_FILES_MAX or self.is_out_of_order

    def _depths(self) -> NDArray[np.int64]:
        """For the least value of each file the number of files whose range holds it."""
        known = pc.and_(self.low.is_valid(), self.high.is_valid())
        chunks = [*self.low.filter(known).chunks, *self.high.filter(known).chunks]
        if not any(len(chunk) for chunk in chunks):
            return np.ones(1, dtype=np.int64)
        both = pa.concat_arrays(chunks)
        ranks = pc.rank(both, sort_keys="ascending", tiebreaker="dense").to_numpy()
        lows, highs = np.split(ranks, 2)
        begun = np.searchsorted(np.sort(lows), lows, side="right")
        ended = np.searchsorted(np.sort(highs), lows, side="left")
        return begun - ended
