"""Changes by the time of their commit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.decode.decoder import TableChanges
from tailrace.model.change import COMMIT_TS


def committed_between(changes: TableChanges, first_us: int, last_us: int) -> TableChanges:
    """Those that were committed from `first_us` to `last_us`, both included, in microseconds since
    1970.
    """
    times = changes.rows.column(COMMIT_TS).cast(pa.int64()).to_numpy()
    inside = (times >= first_us) & (times <= last_us)
    if np.all(inside):
        return changes
    return TableChanges(changes.relation, changes.rows.filter(pa.array(inside)))
