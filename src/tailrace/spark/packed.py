"""The changes of many tables in one query, packed: for streams, which deliver tables side by side.

Spark gives a query one schema, but every table has its own. So the executors decode and emit one
row per table and piece, with the table's shape and its changes as an Arrow payload; the driver
unpacks them. A job per table would read every segment once per table: measured with ten tables,
that takes two to four times as long.

Tables may have to be read from different positions on. A batch ends where one of them joins in, so
a batch has all changes of a table or none.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from tailrace.log import Reader
from tailrace.log.plan import Limits, Wanted, pieces
from tailrace.model import Offset, Relation
from tailrace.spark.options import one_line_errors
from tailrace.spark.planning import (
    BatchEnds,
    LogPartition,
    decode_pieces,
    keep_imports,
    partitions,
    worker_store,
)
from tailrace.spark.recent import shared
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode import TableChanges

SCHEMA: Final = "lsn long, ordinal long, about binary, changes binary"


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table to read, by oid and under this name, from `after` on."""

    oid: int
    name: str
    after: Offset


@dataclass(frozen=True, slots=True)
class PackedOptions:
    """What a packed read is told. `first_end` is where the first batch must end, if it is known.

    A read that has an `end` stops there. With `between_us`, only what was committed in that time is
    read, both ends included; commit times may go back in the log.
    """

    log: str
    tables: tuple[ReadTable, ...]
    start: Offset
    first_end: Offset | None
    changes_max: int
    bytes_max: int
    selection: Selection = EVERYTHING
    end: Offset | None = None
    between_us: tuple[int, int] | None = None

    def to_option(self) -> str:
        """As the one option `spec` of the source."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @classmethod
    def from_option(cls, text: str) -> PackedOptions:
        """Read what `to_option` wrote."""
        options = pickle.loads(base64.b64decode(text))
        assert isinstance(options, cls)
        return options


class PackedDataSource(DataSource):
    """Internal to streams: its rows are what `packing` makes them."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.readStream.format(…)`."""
        return "tailrace-packed"

    def schema(self) -> str:
        """Always the same."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        return PackedStreamReader(PackedOptions.from_option(self.options["spec"]))


class PackedPartition(LogPartition):
    """Pieces for one task of the batch that begins after `after`; the first one also tells where it
    ends.
    """

    def __init__(self, group: LogPartition, after: Offset, upto: Offset | None = None) -> None:
        super().__init__(group.pieces)
        self.after = after
        self.upto = upto


class PackedStreamReader(DataSourceStreamReader):
    """Plans on the driver, decodes on the executors."""

    def __init__(self, options: PackedOptions) -> None:
        self._options = options
        self._ends: BatchEnds | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ends": None}

    def initialOffset(self) -> dict[str, int]:
        """The stored position of the stream: the same whenever Spark asks."""
        return self._options.start.to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Both limits are applied here."""
        return ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the batch ends; the first one again where it ended before a restart."""
        with one_line_errors():
            return self.next_end(Offset.from_dict(start), limit).to_dict()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Tell the range even if no table has a change."""
        with one_line_errors():
            after, upto = Offset.from_dict(start), Offset.from_dict(end)
            first, *rest = self.plan(after, upto)
            told = PackedPartition(first, after, upto)
            return [told, *(PackedPartition(group, after) for group in rest)]

    def next_end(self, after: Offset, limit: ReadLimit) -> Offset:
        """Where the batch ends that begins after `after`; there, if there is none."""
        options = self._options
        if options.first_end is not None and after == options.start:
            return options.first_end
        if options.end is not None and after >= options.end:
            return after
        end = self._batch_ends().next(after, limit, wanted=self._wanted(after))
        stops = [table.after for table in options.tables if table.after > after]
        stops += [] if options.end is None else [options.end]
        return min([end, *stops])

    def plan(self, after: Offset, upto: Offset) -> list[LogPartition]:
        """What to read for `(after, upto]`, as tasks; at least one."""
        reader = self._batch_ends().reader
        return partitions(pieces(reader, after, upto, wanted=self._wanted(after)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        from tailrace.spark.packing import range_row

        assert isinstance(partition, PackedPartition)
        with one_line_errors():
            if partition.upto is not None:
                yield range_row(partition.after, partition.upto)
            yield from shared(self._made_of(partition), lambda: self._rows(partition))
            keep_imports()

    def _rows(self, partition: PackedPartition) -> Iterator[pa.RecordBatch]:
        from tailrace.spark.packing import changes_row

        store = worker_store(self._options.log)
        return map(changes_row, self.changes(store, partition, partition.after))

    def _made_of(self, partition: PackedPartition) -> object:
        """All that the rows of a part of a batch depend on."""
        options = self._options
        names = tuple(self._names(partition.after).items())
        return options.log, partition.pieces, names, str(options.selection), options.between_us

    def changes(
        self, store: Store, partition: LogPartition, after: Offset
    ) -> Iterator[TableChanges]:
        """What is delivered of a part of the batch that begins after `after`, in order."""
        selection = self._options.selection
        wanted, columns = self._wanted(after), selection.read_columns
        for changes in decode_pieces(store, partition.pieces, wanted, columns):
            selected = selection.apply(self._in_time(changes))
            if selected.rows.num_rows:
                yield selected

    def _in_time(self, changes: TableChanges) -> TableChanges:
        from tailrace.decode.times import committed_between

        between_us = self._options.between_us
        return changes if between_us is None else committed_between(changes, *between_us)

    def _names(self, after: Offset) -> dict[int, str]:
        """The tables that are read in a batch which begins there."""
        return {table.oid: table.name for table in self._options.tables if table.after <= after}

    def _wanted(self, after: Offset) -> Wanted:
        names = self._names(after)

        def wanted(relation: Relation) -> bool:
            return names.get(relation.oid) == relation.qualified

        return wanted

    def _batch_ends(self) -> BatchEnds:
        if self._ends is None:
            limits = Limits(self._options.changes_max, self._options.bytes_max)
            reader = Reader(open_store(self._options.log))
            self._ends = BatchEnds(reader, limits=limits)
        return self._ends
