"""A batch in slices, so that the memory of a stream follows its window and not its batch: a message
takes many times the bytes of a small change.

The slices of a batch, one behind the other, are the batch in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.decode import TableChanges
from tailrace.model.change import COMMIT_LSN, ORDINAL

ROWS_AT_ONCE: Final = 50_000
"""Some windows: at the end of each slice the queue has nothing to do for a moment. It is no option,
so that whoever goes on with a batch cuts it where its predecessor did.
"""


def slices(
    tables: Sequence[TableChanges], row_count: int = ROWS_AT_ONCE
) -> Iterator[Sequence[TableChanges]]:
    """Each with so many rows, the last with the rest; there is at least one."""
    ends = np.cumsum([table.rows.num_rows for table in tables], dtype=np.int64)
    if not len(ends) or ends[-1] <= row_count:
        yield tables
        return
    order = np.lexsort((_numbers(tables, ORDINAL), _numbers(tables, COMMIT_LSN)))
    slice_of = np.empty(len(order), np.int64)
    slice_of[order] = np.arange(len(order)) // row_count
    # The rows of a table are in the order of the log, so those of a slice stand together.
    by_table = np.split(slice_of, ends[:-1])
    for number in range(int(slice_of.max()) + 1):
        found = zip(
            tables, (np.searchsorted(of, (number, number + 1)) for of in by_table), strict=True
        )
        yield [
            TableChanges(table.relation, table.rows.slice(first, end - first))
            for table, (first, end) in found
            if first < end
        ]


def _numbers(tables: Sequence[TableChanges], name: str) -> NDArray[np.int64]:
    return np.concatenate([table.rows.column(name).to_numpy() for table in tables])
