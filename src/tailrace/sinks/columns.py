"""The columns that a lake table has beside the source's own, by what it holds."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tailrace.model import META_COLUMNS
from tailrace.sinks.keys import Column
from tailrace.sinks.sink import Holds

ArrowField: TypeAlias = "pa.Field[Any]"

VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
FROM_LSN: Final = "_from_lsn"
FROM_ORDINAL: Final = "_from_ordinal"
TO_LSN: Final = "_to_lsn"
TO_ORDINAL: Final = "_to_ordinal"
DELETED_AT: Final = "_deleted_at"

_TIME: Final = pa.timestamp("us", tz="UTC")

BEGIN: Final[tuple[ArrowField, ...]] = (
    pa.field(VALID_FROM, _TIME),
    pa.field(FROM_LSN, pa.int64()),
    pa.field(FROM_ORDINAL, pa.int64()),
)
"""When a version begins: commit time, then offset."""

END: Final[tuple[ArrowField, ...]] = (
    pa.field(VALID_TO, _TIME),
    pa.field(TO_LSN, pa.int64()),
    pa.field(TO_ORDINAL, pa.int64()),
)
"""When it ends; NULL while it is open."""

DELETION: Final[ArrowField] = pa.field(DELETED_AT, _TIME)

OWN_COLUMNS: Final = frozenset(
    [*META_COLUMNS, *(field.name for field in (*BEGIN, *END)), DELETED_AT]
)
"""Every name that Tailrace gives to a column of its own."""


class Mode(StrEnum):
    """What a lake table holds: the source's rows as they are, every change to them, or every
    version that they have had.
    """

    UPSERT = "upsert"
    APPEND = "append"
    HISTORY = "history"

    @property
    def holds(self) -> Holds:
        """The same, as a stream asks for it."""
        return _HOLDS[self]


_HOLDS: Final = {
    Mode.UPSERT: Holds.ROWS,
    Mode.APPEND: Holds.CHANGES,
    Mode.HISTORY: Holds.VERSIONS,
}


def with_columns(rows: pa.Table, fields: tuple[ArrowField, ...], values: pa.Table) -> pa.Table:
    """The rows with these columns beside them, filled from the columns of `values`, by place."""
    columns: list[Column] = values.columns
    for field, column in zip(fields, columns, strict=True):
        rows = rows.append_column(field, column)
    return rows
