"""A run of a stream without Spark: the same plan, the same executor's code, the same delivery."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from tailrace.log import Reader
from tailrace.model import Offset
from tailrace.sinks import Batch, Sink
from tailrace.sinks.memory import MemorySink
from tailrace.spark.options import NO_LIMIT
from tailrace.spark.packed import PackedOptions, PackedStreamReader
from tailrace.storage import Store
from tailrace.streams.delivery import Delivery
from tailrace.streams.record import StreamRecord
from tailrace.streams.resume import resume

STREAM = "lake"
ALL_TABLES = ("public.*",)


class Run:
    """One run, from where the stream's record says to the end of the log, a batch at a time."""

    def __init__(
        self,
        store: Store,
        sink: Sink,
        *,
        stream: str = STREAM,
        patterns: Sequence[str] = ALL_TABLES,
        changes_max: int = NO_LIMIT,
        log: Store | None = None,
    ) -> None:
        told, writer = tuple(patterns), secrets.token_hex(8)
        record = StreamRecord(store, stream)
        at = resume(record, Reader(store), patterns=told, writer=writer)
        self.delivery = Delivery(stream, sink, record, at, patterns=told, writer=writer)
        first_end = at.unfinished.upto if at.unfinished else None
        self._source = PackedStreamReader(
            PackedOptions((log or store).url, told, at.start, first_end, changes_max, NO_LIMIT)
        )
        self._position = self._source.initialOffset()

    def step(self) -> bool:
        """Deliver one batch; False at the end of the log."""
        end = self._source.latestOffset(self._position, self._source.getDefaultReadLimit())
        if end == self._position:
            return False
        partitions = self._source.partitions(self._position, end)
        rows = [row for partition in partitions for row in self._source.read(partition)]
        self.delivery.deliver(pa.Table.from_batches(rows))
        self._position = end
        return True

    def to_end(self) -> Offset:
        """Deliver everything; returns how far that is."""
        while self.step():
            pass
        return self.delivery.delivered.position


class WatchedSink(MemorySink):
    """Keeps the rows as a sink must, and every batch that it was ever given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.given.append(batch)
        super().write(batch)

    def check_numbers(self) -> None:
        """The same number always means the same range, and ranges follow each other."""
        ranges = {batch.sequence: (batch.after, batch.upto) for batch in self.given}
        for batch in self.given:
            assert ranges[batch.sequence] == (batch.after, batch.upto)
        ordered = [ranges[number] for number in sorted(ranges)]
        for (_, upto), (after, _) in pairwise(ordered):
            assert upto == after


def rows_of(sink: MemorySink, table: str = "public.orders") -> list[tuple[object, ...]]:
    """What the sink has of a table, by key, without the texts."""
    rows = sink.table(table).drop_columns(["_text"]).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: repr(row[0]))
