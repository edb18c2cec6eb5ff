"""What the demo's screen shows, read from outside: Postgres, the log, the lake's own metadata.

A frame must cost little, because the demo shares its few cores with what it shows: the part of the
log that was seen is remembered, and rows in the lake are counted from Delta's statistics.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from psycopg import sql

from tailrace.cli.screen import DemoFrame, TableRows
from tailrace.cli.shop import Written
from tailrace.errors import SourceError
from tailrace.log import Reader
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection, connect
from tailrace.status import Report, gather
from tailrace.storage import Store

STREAM: Final = "lake"
_RATE_WINDOW_S: Final = 5.0


class Gauges:
    """All gauges of one demo."""

    def __init__(
        self,
        dsn: str,
        names: SourceNames,
        store: Store,
        *,
        lake: Path,
        tables: Sequence[str],
    ) -> None:
        self._dsn = dsn
        self._conn = connect(dsn)
        self._names = names
        self._reader = Reader(store)
        self._tables = tables
        self._lake = [LakeRows(str(lake.joinpath(*name.split(".")))) for name in tables]
        self._rate = Rate(_RATE_WINDOW_S)
        self._began: float | None = None

    def report(self) -> Report:
        """Source, log and the one stream, as of now."""
        return gather(self._dsn, self._names, self._reader, {STREAM: []}, now_s=time.time())

    def frame(self, phase: str, report: Report, written: Written, trouble: str) -> DemoFrame:
        """Everything, as of now; time counts from the first frame."""
        now = time.monotonic()
        self._began = self._began or now
        (stream,) = report.streams
        return DemoFrame(
            phase=phase,
            elapsed_s=now - self._began,
            transactions=written.transactions,
            changes=written.changes,
            changes_per_s=self._rate.per_s(now, written.changes),
            lag_ms=None if stream.lag_s is None else stream.lag_s * 1000,
            segments=report.log.object_count,
            log_bytes=report.log.stored_bytes,
            wal_retained_bytes=report.source.retained_wal_bytes,
            tables=self._rows(),
            trouble=trouble,
        )

    def close(self) -> None:
        """End the session that counts rows."""
        self._conn.close()

    def _counts(self) -> list[int] | list[None]:
        """The rows of each table in the source; none are known while the server is away."""
        try:
            if self._conn.closed:
                self._conn = connect(self._dsn)
            return _count(self._conn, self._tables)
        except (psycopg.OperationalError, SourceError):
            self._conn.close()
            return [None] * len(self._tables)

    def _rows(self) -> tuple[TableRows, ...]:
        counts = self._counts()
        return tuple(
            TableRows(name.removeprefix("public."), count, lake.count())
            for name, count, lake in zip(self._tables, counts, self._lake, strict=True)
        )


class Rate:
    """How fast a counter rises, over the last seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def per_s(self, now: float, count: int) -> float:
        """Note the counter's value now; returns its rate since the window began."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._window_s:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0


class LakeRows:
    """The rows of one lake table, counted from the statistics that its writer left."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._table: DeltaTable | None = None

    def count(self) -> int | None:
        """As of now; None while there is no table."""
        try:
            if self._table is None:
                self._table = DeltaTable(self._uri)
            else:
                self._table.update_incremental()
            return self._table.count()
        except (DeltaError, OSError):
            return None


def _count(conn: Connection, tables: Sequence[str]) -> list[int]:
    counts = sql.SQL(", ").join(
        sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier(*name.split(".")))
        for name in tables
    )
    row = conn.execute(sql.SQL("SELECT {}").format(counts)).fetchone()
    assert row is not None
    return [int(count) for count in row]
