"""What can happen to a row, where that was captured, and the columns that say so beside the row's
own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Op(StrEnum):
    """What happened."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


class Origin(StrEnum):
    """How it was captured."""

    WAL = "wal"
    TRIGGER = "trigger"
    SNAPSHOT = "snapshot"
    REPAIR = "repair"
    REPLAY = "replay"


OP: Final = "_op"
COMMIT_LSN: Final = "_commit_lsn"
ORDINAL: Final = "_ordinal"
COMMIT_TS: Final = "_commit_ts"
XID: Final = "_xid"
ORIGIN: Final = "_origin"
UNCHANGED: Final = "_unchanged"
BEFORE: Final = "_before"
TEXT: Final = "_text"

META_COLUMNS: Final = (OP, COMMIT_LSN, ORDINAL, COMMIT_TS, XID, ORIGIN, UNCHANGED, BEFORE, TEXT)
"""In the order in which they follow the table's own columns."""
