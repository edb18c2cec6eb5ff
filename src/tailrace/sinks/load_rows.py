"""A load as changes: what a target that keeps every change is given for one."""

from __future__ import annotations

import pyarrow as pa

from tailrace.decode import change_schema
from tailrace.model import Op, Origin
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, ORIGIN, XID
from tailrace.sinks.sink import LOAD_ORDINAL, Load


def truncate_row(load: Load) -> pa.Table:
    """The change that ends what was there before, so that whoever folds the changes arrives at the
    rows of the load.
    """
    row = {
        OP: Op.TRUNCATE.value,
        COMMIT_LSN: int(load.position),
        ORDINAL: LOAD_ORDINAL,
        COMMIT_TS: load.commit_ts_us,
        XID: 0,
        ORIGIN: Origin.SNAPSHOT.value,
    }
    return pa.Table.from_pylist([row], schema=change_schema(load.relation))
