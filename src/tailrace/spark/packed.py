"""The changes of many tables in one query, packed: for streams, which deliver tables side by side.

Spark gives a query one schema, but every table has its own. So the executors decode and emit one
row per table and piece, with the table's shape and its changes as an Arrow payload; the driver
unpacks them. One more row tells the range of the batch. A job per table would read every segment
once per table: measured with ten tables, that takes two to four times as long.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from tailrace.decode import TableChanges
from tailrace.log import Reader
from tailrace.log.plan import Limits, pieces
from tailrace.model import Offset, Relation
from tailrace.postgres.pattern import TablePattern
from tailrace.spark.options import one_line_errors
from tailrace.spark.planning import BatchEnds, LogPartition, decode_pieces, partitions
from tailrace.storage import open_store

SCHEMA: Final = "lsn long, ordinal long, relation binary, payload binary"
_FIELDS: Final[dict[str, pa.DataType]] = {
    "lsn": pa.int64(),
    "ordinal": pa.int64(),
    "relation": pa.binary(),
    "payload": pa.binary(),
}
_ARROW: Final = pa.schema(_FIELDS)


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
    """Internal to streams: its rows are unpacked by `unpack`."""

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
        """At least one, so that the range is told even if no table has a change."""
        with one_line_errors():
            after, upto = Offset.from_dict(start), Offset.from_dict(end)
            reader = self._reader()
            groups = partitions(pieces(reader, after, upto, wanted=self._wants))
            first, *rest = groups or [LogPartition(())]
            batch = (after, upto)
            return [PackedPartition(first, batch), *(PackedPartition(g, None) for g in rest)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        assert isinstance(partition, PackedPartition)
        with one_line_errors():
            if partition.batch is not None:
                yield _range_row(*partition.batch)
            store = self._reader().store
            for changes in decode_pieces(store, partition.pieces, self._wants, None):
                yield _packed_row(changes)

    def _wants(self, relation: Relation) -> bool:
        return any(one.matches(relation.schema, relation.name) for one in self._patterns)

    def _reader(self) -> Reader:
        return Reader(open_store(self._options.log))

    def _batch_ends(self) -> BatchEnds:
        if self._ends is None:
            limits = Limits(self._options.changes_max, self._options.bytes_max)
            self._ends = BatchEnds(self._reader(), limits=limits, wanted=self._wants)
        return self._ends


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A batch on the driver: its range, and each table's changes in order."""

    after: Offset
    upto: Offset
    tables: tuple[TableChanges, ...]


def unpack(packed: pa.Table) -> Unpacked:
    """Put the pieces of each table together again, in offset order."""
    rows = sorted(packed.to_pylist(), key=lambda row: (row["lsn"], row["ordinal"]))
    ranges = [row for row in rows if row["relation"] is None]
    assert len(ranges) == 1, f"{len(ranges)} ranges in one batch"
    after, upto = (Offset.from_json(text) for text in pickle.loads(ranges[0]["payload"]))
    found: dict[str, tuple[Relation, list[pa.Table]]] = {}
    for row in rows:
        if row["relation"] is not None:
            relation: Relation = pickle.loads(row["relation"])
            first, tables = found.setdefault(relation.qualified, (relation, []))
            # The planner ends a batch where a table changes its shape.
            assert relation.columns == first.columns, f"two shapes of {relation.qualified}"
            with pa.ipc.open_stream(row["payload"]) as payload:
                tables.append(payload.read_all())
    return Unpacked(
        after,
        upto,
        tuple(TableChanges(first, pa.concat_tables(tables)) for first, tables in found.values()),
    )


def _range_row(after: Offset, upto: Offset) -> pa.RecordBatch:
    payload = pickle.dumps((after.to_json(), upto.to_json()))
    return pa.RecordBatch.from_pydict(
        {"lsn": [-1], "ordinal": [0], "relation": [None], "payload": [payload]}, schema=_ARROW
    )


def _packed_row(changes: TableChanges) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.rows.schema) as writer:
        writer.write_table(changes.rows)
    row = {
        "lsn": [changes.rows["_commit_lsn"][0].as_py()],
        "ordinal": [changes.rows["_ordinal"][0].as_py()],
        "relation": [pickle.dumps(changes.relation)],
        "payload": [sink.getvalue().to_pybytes()],
    }
    return pa.RecordBatch.from_pydict(row, schema=_ARROW)
