"""A run of a stream without Spark: the same plan, the same executor's code, the same delivery."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from tailrace.log import Reader
from tailrace.log.bases import newest_bases
from tailrace.log.epochs import Fence
from tailrace.model import Offset
from tailrace.sinks import Batch, Load, Sink
from tailrace.sinks.memory import MemorySink
from tailrace.spark.options import NO_LIMIT
from tailrace.spark.packed import PackedStreamReader
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import Store
from tailrace.streams.delivery import Delivery
from tailrace.streams.preparing import load_due
from tailrace.streams.query import read_options
from tailrace.streams.record import StreamRecord
from tailrace.streams.resume import resume
from tailrace.streams.stream import Stream
from tests.spark.made_log import Table

STREAM = "lake"
ALL_TABLES = ("public.*",)


class Run:
    """One run, from where the stream's record says to the end of the log, a batch at a time; what
    is due is loaded first.
    """

    def __init__(
        self,
        store: Store,
        sink: Sink,
        *,
        stream: str = STREAM,
        patterns: Sequence[str] = ALL_TABLES,
        changes_max: int = NO_LIMIT,
        selection: Selection = EVERYTHING,
        log: Store | None = None,
        fence: Fence | None = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        told, writer = tuple(patterns), secrets.token_hex(8)
        self._again: Callable[[], Run] = lambda: Run(
            store,
            sink,
            stream=stream,
            patterns=patterns,
            changes_max=changes_max,
            selection=selection,
            log=log,
            fence=fence,
            turn=turn,
        )
        record = StreamRecord(store, stream, fence)
        at = resume(record, Reader(store), patterns=told, writer=writer, selection=str(selection))
        self.delivery = Delivery(
            stream,
            sink,
            record,
            at,
            writer=writer,
            selection=selection,
            bases=lambda: newest_bases(store),
            turn=turn,
        )
        load_due(
            self.delivery,
            store,
            told,
            selection,
            unfinished=at.unfinished,
            stop=threading.Event(),
        )
        self._is_open = at.first_end is not None
        read = Stream(
            stream,
            told,
            lambda _: sink,
            changes_max=changes_max,
            bytes_max=NO_LIMIT,
            selection=selection,
        )
        self._source = PackedStreamReader(read_options(read, (log or store).url, self.delivery, at))
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
        """Deliver everything; returns how far that is. A run that began with an unfinished batch
        has not looked for bases: that is left to another.
        """
        while self.step():
            pass
        if self._is_open:
            return self._again().to_end()
        return self.delivery.delivered.position


class WatchedSink(MemorySink):
    """Keeps the rows as a sink must, and every batch and load that it was ever given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Batch] = []
        self.loads: list[Load] = []

    def write(self, batch: Batch) -> None:
        self.given.append(batch)
        super().write(batch)

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        self.loads.append(load)
        super().load(load, rows)

    def check_numbers(self) -> None:
        """The same number always means the same, and ranges follow each other unless a load is
        between them.
        """
        ranges = {batch.sequence: (batch.after, batch.upto) for batch in self.given}
        for batch in self.given:
            assert ranges[batch.sequence] == (batch.after, batch.upto)
        bases = {load.sequence: (load.relation.oid, load.position) for load in self.loads}
        for load in self.loads:
            assert bases[load.sequence] == (load.relation.oid, load.position)
        assert not bases.keys() & ranges.keys()
        for number, (_, upto) in ranges.items():
            if number + 1 in ranges:
                assert upto == ranges[number + 1][0]


def rows_of(sink: MemorySink, table: str = "public.orders") -> list[tuple[object, ...]]:
    """What the sink has of a table, by key, without the texts."""
    rows = sink.table(table).drop_columns(["_text"]).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: repr(row[0]))


def filled(table: Table, first: int = 1, rows: int = 10) -> Table:
    """A table that had rows before the log knew of it."""
    width = len(table.relation.columns)
    table.by_key = {key: (key, f"old {key}", 1)[:width] for key in range(first, first + rows)}
    return table
