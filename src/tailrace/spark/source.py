"""The `tailrace` format: the changes of one table as a Spark DataFrame, in batch and as a stream.

The columns are those of the table, typed, followed by the meta columns. The schema is that of the
table's newest shape in the range when the read begins; older rows are read under it. When a stream
meets a newer shape it stops with one line; started again on its checkpoint it goes on.

A read starts with the table's base, if there is one and it is not told otherwise: the rows of the
base as inserts, then the changes after its position, so that both together are the table.
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

from tailrace.errors import ConfigError, LogError, OffsetOutOfRange, SchemaError
from tailrace.log import Base, Reader
from tailrace.log.history import uses_back
from tailrace.log.plan import pieces
from tailrace.model import ORIGIN, Offset, Relation
from tailrace.spark.options import ReadOptions, one_line_errors
from tailrace.spark.place import Place
from tailrace.spark.planning import (
    BatchEnds,
    LogPartition,
    decode_pieces,
    partitions,
    worker_store,
)
from tailrace.spark.whole import (
    BasePartition,
    base_at,
    base_partitions,
    decode_partition,
    end_in_base,
    first_row,
    newest_base,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode import TableChanges


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

    def _plan(self, reader: Reader, after: Offset, upto: Offset) -> Sequence[InputPartition]:
        return partitions(pieces(reader, after, upto, wanted=self._wants))

    def _changes(self, partition: InputPartition) -> Iterator[TableChanges]:
        store, columns = worker_store(self._options.log), self._options.columns
        if isinstance(partition, BasePartition):
            return decode_partition(store, partition, columns)
        assert isinstance(partition, LogPartition)
        return decode_pieces(store, partition.pieces, self._wants, columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from tailrace.spark.fit import fitted

        schema = to_arrow_schema(self._schema, timezone="UTC")
        with one_line_errors():
            for changes in self._changes(partition):
                yield from fitted(changes, schema).to_batches()


class TableReader(_Table, DataSourceReader):
    """One batch read of `(start, end]`, or of a base and what follows it up to the end."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            reader = self._options.reader()
            start, upto = self._options.start(reader), self._options.end(reader)
            if start.in_base:
                return self._plan_from_base(reader, upto)
            if start.offset > upto:
                raise ConfigError(f"the read starts after {start.offset}, but ends at {upto}")
            return self._plan(reader, start.offset, upto)

    def _plan_from_base(self, reader: Reader, upto: Offset) -> Sequence[InputPartition]:
        options = self._options
        base = newest_base(reader.store, options.table, upto=upto if options.is_bounded else None)
        if base is None:
            raise LogError(f"the base of {options.table} was deleted at this moment", retry=True)
        after = Offset.whole(base.position)
        # A base may be ahead of the log: then there is nothing to add yet.
        return [*base_partitions(base), *self._plan(reader, after, max(after, upto))]


class TableStreamReader(_Table, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches, none of which crosses a change of the table's shape."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.is_bounded:
            raise ConfigError("a stream has no end", hint="endingOffset is for spark.read alone")
        self._ends: BatchEnds | None = None
        self._initial: Place | None = None
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
            place, ends = Place.from_dict(start), self._batch_ends()
            if place.in_base:
                limits = ends.limited(limit)
                return end_in_base(self._base(place), place, limits).to_dict()
            return ends.next(place.offset, limit, wanted=self._wants).to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end."""
        with one_line_errors():
            self._batch_ends().stop_at_tip()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            first, last = Place.from_dict(start), Place.from_dict(end)
            if first.in_base or last.in_base:
                return self._plan_in_base(first, last)
            after, upto = first.offset, last.offset
            if after > upto:
                raise _moved(after)
            reader = self._batch_ends().reader
            self._must_fit(reader, after, upto)
            return self._plan(reader, after, upto)

    def _plan_in_base(self, first: Place, last: Place) -> Sequence[InputPartition]:
        """The end of a batch tells which base it is of."""
        store = self._batch_ends().reader.store
        if not first.in_base or first.base_position not in (None, last.base_position):
            raise _moved(first.offset)
        base = base_at(store, self._options.table, last.offset.commit_lsn)
        tasks = base_partitions(base, first_row(base, first), last.offset.ordinal)
        return tasks or [LogPartition(())]

    def _base(self, place: Place) -> Base:
        """The base that a batch reads which begins there."""
        store, table = self._batch_ends().reader.store, self._options.table
        if place.base_position is not None:
            return base_at(store, table, place.base_position)
        base = newest_base(store, table)
        if base is None:
            raise LogError(f"the base of {table} was deleted at this moment", retry=True)
        return base

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


def _moved(start: Offset) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"the stream's start has moved to {start}, past its first batch",
        hint="name the start as a position, and begin with a new checkpoint",
    )
