"""Changes in steps of bounded size, so that a transaction of any size is folded in little memory.

Invariant: where a step ends follows from the changes alone, not from how they lie in objects, which
merging changes. So a fold that is done again makes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.decode import TableChanges
from tailrace.postgres.binaries import text_offsets

ROW_BYTES: Final = 64
"""What a change takes beside its texts."""


def in_steps(changes: Iterable[TableChanges], *, bytes_max: int) -> Iterator[list[TableChanges]]:
    """The same changes, whose columns are texts, about `bytes_max` of them at a time."""
    step: list[TableChanges] = []
    size = 0
    for each in changes:
        first, ends = 0, size + np.cumsum(_sizes(each))
        while first < each.rows.num_rows:
            last = int(np.searchsorted(ends, bytes_max)) + 1
            step.append(replace(each, rows=each.rows.slice(first, last - first)))
            if last > each.rows.num_rows:
                size = int(ends[-1])
                break
            yield step
            step, size = [], 0
            first, ends = last, ends - ends[last - 1]
    if step:
        yield step


def _sizes(changes: TableChanges) -> NDArray[np.int64]:
    """Of each row."""
    sizes = np.full(changes.rows.num_rows, ROW_BYTES, dtype=np.int64)
    for name in changes.relation.column_names:
        sizes += np.diff(text_offsets(changes.rows.column(name).combine_chunks()))
    return sizes
