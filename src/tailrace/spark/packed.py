"""The changes of many tables in one query, packed: for streams, which deliver tables side by side.

Spark gives a query one schema, but every table has its own. So the executors decode and emit one
row per table and piece, with the table's shape and its changes as an Arrow payload; the driver
unpacks them. A job per table would read every segment once per table: measured with ten tables,
that takes two to four times as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from tailrace.log import Reader
from tailrace.log.plan import Limits, pieces
from tailrace.model import Offset, Relation
from tailrace.postgres.pattern import TablePattern
from tailrace.spark.options import one_line_errors
from tailrace.spark.planning import (
    BatchEnds,
    LogPartition,
    decode_pieces,
    partitions,
    worker_store,
)
from tailrace.storage import open_store

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = "lsn long, ordinal long, about binary, changes binary"


@dataclass(frozen=True, slots=True)
class PackedOptions:
    """What a packed read is told. `first_end` is where the first batch must end, if it is known."""

    log: str
    patterns: tuple[str, ...]
    start: Offset
    first_end: Offset | None
    changes_max: int
    bytes_max: int

    def to_option(self) -> str:
        """As the one option `spec` of the source."""
        return json.dumps(
            {
                "log": self.log,
                "patterns": list(self.patterns),
                "start": self.start.to_dict(),
                "first_end": self.first_end and self.first_end.to_dict(),
                "changes_max": self.changes_max,
                "bytes_max": self.bytes_max,
            }
        )

    @classmethod
    def from_option(cls, text: str) -> PackedOptions:
        """Read what `to_option` wrote."""
        value = json.loads(text)
        return cls(
            log=value["log"],
            patterns=tuple(value["patterns"]),
            start=Offset.from_dict(value["start"]),
            first_end=value["first_end"] and Offset.from_dict(value["first_end"]),
            changes_max=value["changes_max"],
            bytes_max=value["bytes_max"],
        )


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
    """Pieces for one task; the first task of a batch also tells the batch's range."""

    def __init__(self, group: LogPartition, batch: tuple[Offset, Offset] | None) -> None:
        super().__init__(group.pieces)
        self.batch = batch


class PackedStreamReader(DataSourceStreamReader):
    """Plans on the driver, decodes on the executors."""

    def __init__(self, options: PackedOptions) -> None:
        self._options = options
        self._patterns = tuple(TablePattern.parse(text) for text in options.patterns)
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
            after = Offset.from_dict(start)
            if self._options.first_end is not None and after == self._options.start:
                return self._options.first_end.to_dict()
            return self._batch_ends().next(after, limit).to_dict()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Tell the range even if no table has a change."""
        with one_line_errors():
            after, upto = Offset.from_dict(start), Offset.from_dict(end)
            reader = self._batch_ends().reader
            first, *rest = partitions(pieces(reader, after, upto, wanted=self._wants))
            batch = (after, upto)
            return [PackedPartition(first, batch), *(PackedPartition(g, None) for g in rest)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        from tailrace.spark.packing import changes_row, range_row

        assert isinstance(partition, PackedPartition)
        with one_line_errors():
            if partition.batch is not None:
                yield range_row(*partition.batch)
            store = worker_store(self._options.log)
            for changes in decode_pieces(store, partition.pieces, self._wants, None):
                yield changes_row(changes)

    def _wants(self, relation: Relation) -> bool:
        return any(one.matches(relation.schema, relation.name) for one in self._patterns)

    def _batch_ends(self) -> BatchEnds:
        if self._ends is None:
            limits = Limits(self._options.changes_max, self._options.bytes_max)
            reader = Reader(open_store(self._options.log))
            self._ends = BatchEnds(reader, limits=limits, wanted=self._wants)
        return self._ends
