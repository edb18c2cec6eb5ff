"""How far the first bases of some tables are, seen from outside: by what is in the log."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tailrace.bases.progress import BaseProgress
from tailrace.log import base_part, layout
from tailrace.log.bases import newest_positions
from tailrace.postgres.session import Connection
from tailrace.storage import ObjectMissing, Store


class FirstBases:
    """Tables that are captured and have no base yet."""

    def __init__(self, conn: Connection, store: Store, tables: Sequence[str]) -> None:
        self._store = store
        self._tables = tuple(tables)
        self._rows: dict[str, tuple[int, int]] = {}
        self._began: float | None = None
        query = "SELECT sum(greatest(reltuples, 0))::bigint FROM pg_class WHERE oid = ANY (%s)"
        oids = [conn.execute("SELECT %s::regclass::oid", (name,)).fetchone() for name in tables]
        row = conn.execute(query, ([row[0] for row in oids if row],)).fetchone()
        assert row is not None
        self._row_estimate = int(row[0])

    @property
    def are_complete(self) -> bool:
        """Whether every table has its base."""
        return len(newest_positions(self._store)) >= len(self._tables)

    def look(self) -> BaseProgress:
        """As of now; each part's head is read once."""
        for entry in self._store.list(layout.BASES):
            if entry.key.endswith(".arrow") and entry.key not in self._rows:
                try:
                    header = base_part.read_header(self._store, entry.key)
                except ObjectMissing:
                    continue  # of a try that was given up
                self._rows[entry.key] = (header.row_count, header.data_bytes)
                self._began = self._began or time.monotonic()
        row_count = sum(rows for rows, _ in self._rows.values())
        return BaseProgress(
            tables=self._tables,
            row_count=row_count,
            row_estimate=max(row_count, self._row_estimate),
            data_bytes=sum(size for _, size in self._rows.values()),
            elapsed_s=time.monotonic() - self._began if self._began else 0.0,
        )
