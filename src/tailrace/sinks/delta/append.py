"""A table loaded anew where every change is kept: what was there ends with a TRUNCATE."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tailrace.decode import change_schema
from tailrace.model import Op, Origin
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, ORIGIN, XID
from tailrace.sinks.sink import Load

# The rows of a base count from 0 at the same position.
_ORDINAL: Final = -1


def truncate_row(load: Load) -> pa.Table:
    """The change that comes before the load's rows."""
    row = {
        OP: Op.TRUNCATE.value,
        COMMIT_LSN: int(load.position),
        ORDINAL: _ORDINAL,
        COMMIT_TS: load.commit_ts_us,
        XID: 0,
        ORIGIN: Origin.SNAPSHOT.value,
    }
    return pa.Table.from_pylist([row], schema=change_schema(load.relation))
