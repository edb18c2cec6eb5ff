"""What capture tells Prometheus. The names follow the nouns of the code."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from tailrace.capture.core import Core
from tailrace.control.health import TableStat
from tailrace.control.tracking import Mode
from tailrace.log import Header
from tailrace.model import Lsn


class Metrics:
    """One capture's numbers, in a registry of their own."""

    def __init__(self, source: str) -> None:
        self.registry = CollectorRegistry()
        self._source = source
        self.is_leader = self._gauge("leader", "1 while this process leads the source")
        self.received_lsn = self._gauge("received_lsn", "highest LSN received")
        self.durable_lsn = self._gauge("durable_lsn", "end of the durable log")
        self.acknowledged_lsn = self._gauge("acknowledged_lsn", "LSN last acknowledged")
        self.lag_bytes = self._gauge("lag_bytes", "WAL received but not yet durable")
        self.lag_seconds = self._gauge("lag_seconds", "age of the newest commit received")
        self.retained_bytes = self._gauge("retained_wal_bytes", "WAL that the slot keeps")
        self.last_keepalive = self._gauge("last_keepalive_seconds", "since the last keepalive")
        self.segments = self._counter("segments", "segments sealed")
        self.segment_bytes = self._counter("segment_bytes", "bytes of frames sealed")
        self.changes = self._counter("changes", "row changes sealed")
        self.reconnects = self._counter("reconnects", "connections given up and made again")
        self.buffered_rows = self._gauge("buffered_rows", "rows in the buffers of triggers")
        self.alerts = self._gauge("alerts", "tables whose capture needs a look")
        self._tables = Gauge(
            "tailrace_capture_tables",
            "tables on record, by mode of capture",
            ["source", "mode"],
            registry=self.registry,
        )

    def observe(self, core: Core) -> None:
        """Take the core's positions."""
        self.received_lsn.set(int(core.received))
        self.durable_lsn.set(int(core.durable))
        self.lag_bytes.set(max(0, core.received - core.durable))
        if core.is_at_rest or not core.last_commit_ts_us:
            self.lag_seconds.set(0)
        else:
            self.lag_seconds.set(max(0.0, time.time() - core.last_commit_ts_us / 1e6))
        if core.last_keepalive_at is not None:
            self.last_keepalive.set(time.monotonic() - core.last_keepalive_at)

    def drained(self, header: Header | None) -> None:
        """Note that a drain came through, with a segment if there was anything to take in: what it
        has received is durable, and Postgres was heard of.
        """
        if header is not None:
            self.sealed(header)
            self.received_lsn.set(int(header.end))
            self.durable_lsn.set(int(header.end))
        for gauge in (self.lag_bytes, self.lag_seconds, self.last_keepalive):
            gauge.set(0)

    def sealed(self, header: Header) -> None:
        """Count a segment."""
        self.segments.inc()
        self.changes.inc(header.change_count)
        self.segment_bytes.inc(header.data_bytes + sum(part.data_bytes for part in header.parts))

    def acknowledged(self, position: Lsn) -> None:
        """Note what Postgres was told."""
        self.acknowledged_lsn.set(int(position))

    def modes(self, stats: Sequence[TableStat]) -> None:
        """Count tables by their mode, and what is in their buffers."""
        for mode in Mode:
            count = sum(each.mode == mode for each in stats)
            self._tables.labels(self._source, mode).set(count)
        self.buffered_rows.set(sum(each.buffered_rows for each in stats))

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"tailrace_capture_{name}", text, ["source"], registry=self.registry)
        return gauge.labels(self._source)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"tailrace_capture_{name}", text, ["source"], registry=self.registry)
        return counter.labels(self._source)
