"""The last verification of each stream, kept beside the stream's record.

streams/<stream>/verified/<milliseconds since 1970, 16 digits>.json
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from tailrace.log import layout
from tailrace.model import Lsn
from tailrace.storage import ObjectExists, ObjectMissing, Store
from tailrace.verify.result import StreamResult


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of a stream's last verification: which of its tables differed, and why."""

    stream: str
    position: Lsn
    began_s: float
    table_count: int
    unlike: tuple[str, ...]
    repaired_rows: int

    @property
    def equal(self) -> bool:
        """Whether every table was equal."""
        return not self.unlike


def put_result(store: Store, result: StreamResult) -> None:
    """Keep the result, and forget the one before."""
    prefix = _prefix(result.stream)
    key = f"{prefix}{int(result.began_s * 1000):016d}.json"
    value = {
        "position": int(result.position),
        "began_s": result.began_s,
        "tables": len(result.tables),
        "unlike": [table.table for table in result.tables if not table.equal],
        "repaired_rows": sum(table.repaired_rows for table in result.tables),
    }
    with suppress(ObjectExists):
        store.put_new(key, json.dumps(value).encode())
    store.delete(entry.key for entry in store.list(prefix) if entry.key < key)


def last_result(store: Store, stream: str) -> Verified | None:
    """What was kept last, if it can be read."""
    for entry in reversed(store.list(_prefix(stream))):
        with suppress(ObjectMissing, ValueError, KeyError, TypeError):
            value = json.loads(store.get(entry.key))
            return Verified(
                stream=stream,
                position=Lsn(value["position"]),
                began_s=float(value["began_s"]),
                table_count=int(value["tables"]),
                unlike=tuple(map(str, value["unlike"])),
                repaired_rows=int(value["repaired_rows"]),
            )
    return None


def _prefix(stream: str) -> str:
    return f"{layout.STREAMS}{stream}/verified/"
