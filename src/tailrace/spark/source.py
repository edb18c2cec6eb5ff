"""The `tailrace` format: the changes of one table as a Spark DataFrame, in batch and as a stream.

The columns are those of the table, typed, followed by the meta columns. The schema is that of the
table's newest shape in the range when the read begins; older rows are read under it. When a stream
meets a newer shape it stops with one line; started again on its checkpoint it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailrace.errors import ConfigError, OffsetOutOfRange, SchemaError
from tailrace.log import Reader
from tailrace.log.history import uses_back
from tailrace.log.plan import pieces
from tailrace.model import ORIGIN, Offset, Relation
from tailrace.spark.options import ReadOptions, one_line_errors
from tailrace.spark.planning import (
    BatchEnds,
    LogPartition,
    decode_pieces,
    partitions,
    worker_store,
)

if TYPE_CHECKING:
    import pyarrow as pa


class TailraceDataSource(DataSource):
    """Register with `spark.dataSource.register(TailraceDataSource)`."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format("tailrace")`."""
        return "tailrace"

    def schema(self) -> StructType:
        """The table's newest shape in the range, with the meta columns."""
        from tailrace.spark.shape import newest_relation, spark_schema

        with one_line_errors():
            options = ReadOptions.of(self.options)
            return spark_schema(newest_relation(options), options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        with one_line_errors():
            return TableReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        with one_line_errors():
            return TableStreamReader(ReadOptions.of(self.options), schema)


class _Table:
    """What batch and stream readers of a table share; travels to the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def _wants(self, relation: Relation) -> bool:
        return relation.qualified == self._options.table

    def _plan(self, reader: Reader, after: Offset, upto: Offset) -> Sequence[LogPartition]:
        return partitions(pieces(reader, after, upto, wanted=self._wants))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from tailrace.spark.fit import fitted

        assert isinstance(partition, LogPartition)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with one_line_errors():
            store = worker_store(self._options.log)
            for changes in decode_pieces(
                store, partition.pieces, self._wants, self._options.columns
            ):
                yield from fitted(changes, schema).to_batches()


class TableReader(_Table, DataSourceReader):
    """One batch read of `(start, end]`."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            reader = self._options.reader()
            after, upto = self._options.start(reader), self._options.end(reader)
            if after > upto:
                raise ConfigError(f"the read starts after {after}, but ends at {upto}")
            return self._plan(reader, after, upto)


class TableStreamReader(_Table, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches, none of which crosses a change of the table's shape."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.is_bounded:
            raise ConfigError("a stream has no end", hint="endingOffset is for spark.read alone")
        self._ends: BatchEnds | None = None
        self._initial: Offset | None = None
        self._certain = ORIGIN
        """No shape up to here is newer than the query's."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ends": None}

    def initialOffset(self) -> dict[str, int]:
        """Spark asks twice, and again after a crash: only a position that is named by the options
        is certain to be the same then.
        """
        with one_line_errors():
            if self._initial is None:
                self._initial = self._options.start(self._options.reader())
            return self._initial.to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Rows are Spark's limit; bytes are applied here as well."""
        options = self._options
        if options.changes_max is not None:
            return ReadMaxRows(options.changes_max)
        return ReadMaxBytes(options.limits.bytes_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the batch ends."""
        with one_line_errors():
            end = self._batch_ends().next(Offset.from_dict(start), limit, wanted=self._wants)
            return end.to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end."""
        with one_line_errors():
            self._batch_ends().stop_at_tip()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            after, upto = Offset.from_dict(start), Offset.from_dict(end)
            if after > upto:
                raise OffsetOutOfRange(
                    f"the stream's start has moved to {after}, past its first batch",
                    hint="name the start as a position, and begin with a new checkpoint",
                )
            reader = self._batch_ends().reader
            self._must_fit(reader, after, upto)
            return self._plan(reader, after, upto)

    def _must_fit(self, reader: Reader, after: Offset, upto: Offset) -> None:
        """A shape newer than the query's ends the query; an older one is read under it."""
        if upto <= self._certain or not self._has_others(reader, after, upto):
            return
        newer: Offset | None = None
        for use in uses_back(reader.store, self._options.table):
            if self._is_own(use.relation):
                self._certain = use.since
                break
            newer = use.since
        if newer is not None and newer <= upto:
            raise SchemaError(
                f"{self._options.table} has a new shape from {newer} on",
                hint="start the query again on its checkpoint: it goes on with the new shape",
            )

    def _has_others(self, reader: Reader, after: Offset, upto: Offset) -> bool:
        """Whether the range may hold rows of another shape than the query's."""
        for link in reader.walk(after):
            for use in link.header.relations:
                is_read = self._wants(use.relation) and use.since <= upto
                if is_read and not self._is_own(use.relation):
                    return True
            if link.header.end >= upto.commit_lsn:
                break
        return False

    def _is_own(self, relation: Relation) -> bool:
        from tailrace.spark.shape import change_type

        return change_type(relation, self._options.columns) == self._schema

    def _batch_ends(self) -> BatchEnds:
        if self._ends is None:
            options = self._options
            self._ends = BatchEnds(options.reader(), limits=options.limits)
        return self._ends
