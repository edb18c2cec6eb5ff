"""Changes by the time of their commit."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.decode.decoder import TableChanges
from tailrace.model.change import COMMIT_TS

_Mask: TypeAlias = npt.NDArray[np.bool_]


def committed_between(changes: TableChanges, first_us: int, last_us: int) -> TableChanges:
    """Those that were committed from `first_us` to `last_us`, both included, in microseconds since
    1970.
    """
    inside = is_between(changes.rows, first_us, last_us)
    if np.all(inside):
        return changes
    return TableChanges(changes.relation, changes.rows.filter(pa.array(inside)))


def is_between(rows: pa.Table, first_us: int, last_us: int) -> _Mask:
    """Which rows of changes were committed then."""
    times = rows.column(COMMIT_TS).cast(pa.int64()).to_numpy()
    inside: _Mask = (times >= first_us) & (times <= last_us)
    return inside
