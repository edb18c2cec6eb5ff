"""Changes as the bytes of Parquet files, one for each day on which they were committed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tailrace.model.change import COMMIT_TS
from tailrace.postgres.binaries import Array
from tailrace.sinks.parquet.options import Partition

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def split(rows: pa.Table, partition_by: Partition) -> Iterator[tuple[str, pa.Table]]:
    """The rows by the folder that they go to, below the table."""
    if partition_by is Partition.NONE:
        yield "data", rows
        return
    days = _days(rows)
    for day in np.unique(days):
        mask = days == day
        date = (_EPOCH + timedelta(days=int(day))).date()
        yield f"data/_commit_date={date}", rows if mask.all() else rows.filter(pa.array(mask))


def _days(rows: pa.Table) -> NDArray[np.int64]:
    times: Array = rows.column(COMMIT_TS).combine_chunks()
    days: NDArray[np.int64] = times.view(pa.int64()).fill_null(0).to_numpy() // _DAY_US
    return days


def to_parquet(rows: pa.Table) -> memoryview:
    """A whole file."""
    out = pa.BufferOutputStream()
    pq.write_table(rows, out, compression="zstd")
    return memoryview(out.getvalue()).cast("B")
