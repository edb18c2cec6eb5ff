"""Reads of one table, typed: what batch and stream have in common, and the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tailrace.errors import ConfigError, LogError
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Offset, Relation
from tailrace.spark.options import ReadOptions, one_line_errors
from tailrace.spark.planning import LogPartition, decode_pieces, partitions, worker_store
from tailrace.spark.whole import BasePartition, base_partitions, decode_partition, newest_base

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode import TableChanges


class TableRead:
    """What batch and stream readers of a table share; travels to the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def wants(self, relation: Relation) -> bool:
        """Whether it is this table."""
        return relation.qualified == self.options.table

    def plan(self, reader: Reader, after: Offset, upto: Offset) -> Sequence[InputPartition]:
        """The changes of `(after, upto]`, as tasks."""
        return partitions(pieces(reader, after, upto, wanted=self.wants))

    def _changes(self, partition: InputPartition) -> Iterator[TableChanges]:
        store, columns = worker_store(self.options.log), self.options.columns
        if isinstance(partition, BasePartition):
            return decode_partition(store, partition, columns)
        assert isinstance(partition, LogPartition)
        return decode_pieces(store, partition.pieces, self.wants, columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from tailrace.spark.fit import fitted

        schema = to_arrow_schema(self.schema, timezone="UTC")
        with one_line_errors():
            for changes in self._changes(partition):
                yield from fitted(changes, schema).to_batches()


class TableReader(TableRead, DataSourceReader):
    """One batch read of `(start, end]`, or of a base and what follows it up to the end."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            reader = self.options.reader()
            start, upto = self.options.start(reader), self.options.end(reader)
            if start.in_base:
                return self._plan_from_base(reader, upto)
            if start.offset > upto and not self.options.is_time_span:
                raise ConfigError(f"the read starts after {start.offset}, but ends at {upto}")
            # In a time without a commit, the first one after it is farther than the last before it.
            return self.plan(reader, start.offset, max(start.offset, upto))

    def _plan_from_base(self, reader: Reader, upto: Offset) -> Sequence[InputPartition]:
        options = self.options
        base = newest_base(reader.store, options.table, upto=upto if options.is_bounded else None)
        if base is None:
            raise LogError(f"the base of {options.table} was deleted at this moment", retry=True)
        after = Offset.whole(base.position)
        # A base may be ahead of the log: then there is nothing to add yet.
        return [*base_partitions(base), *self.plan(reader, after, max(after, upto))]
