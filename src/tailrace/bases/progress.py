"""How far the bases of a group of tables are, seen from the log: the parts that are there.

So it counts what is durable, whoever reads it and wherever that runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.bases.stretch import TablePlan
from tailrace.log import base_part, layout
from tailrace.model import Lsn
from tailrace.storage import Store


@dataclass(frozen=True, slots=True)
class BaseProgress:
    """At one moment. `row_estimate` is never below `row_count`; `xmin_age` is how far vacuum is
    held back, in transactions. `is_waiting` while the snapshot waits for open transactions.
    """

    tables: tuple[str, ...]
    position: Lsn | None = None
    row_count: int = 0
    row_estimate: int = 0
    data_bytes: int = 0
    stretch_count: int = 0
    stretches_begun: int = 0
    elapsed_s: float = 0.0
    xmin_age: int = 0
    waiting: str = ""

    @property
    def share(self) -> float:
        """From 0 to 1."""
        if not self.row_estimate:
            return 0.0
        return min(1.0, self.row_count / self.row_estimate)

    @property
    def rows_per_s(self) -> float:
        """On average."""
        return self.row_count / self.elapsed_s if self.elapsed_s else 0.0


class PartCount:
    """Counts the parts of a group of tables as they come."""

    def __init__(self, store: Store, position: Lsn, plans: Sequence[TablePlan]) -> None:
        self._store = store
        self._position = position
        self._plans = plans
        self._rows: dict[str, int] = {}
        self._bytes = 0
        self._stretches: set[tuple[int, int]] = set()
        self._started = time.monotonic()

    def look(self, *, xmin_age: int) -> BaseProgress:
        """As of now; each part's head is read once."""
        for plan in self._plans:
            oid = plan.shape.relation.oid
            for entry in self._store.list(layout.base_prefix(oid, self._position)):
                if entry.key not in self._rows and entry.key.endswith(".arrow"):
                    header = base_part.read_header(self._store, entry.key)
                    self._rows[entry.key] = header.row_count
                    self._bytes += header.data_bytes
                    self._stretches.add((oid, header.stretch))
        row_count = sum(self._rows.values())
        return BaseProgress(
            tables=tuple(plan.shape.relation.qualified for plan in self._plans),
            position=self._position,
            row_count=row_count,
            row_estimate=max(row_count, sum(plan.row_estimate for plan in self._plans)),
            data_bytes=self._bytes,
            stretch_count=sum(len(plan.stretches) for plan in self._plans),
            stretches_begun=len(self._stretches),
            elapsed_s=time.monotonic() - self._started,
            xmin_age=xmin_age,
        )
