"""The `tailrace` format: the changes of one table as a Spark DataFrame, in batch and as a stream.

The columns are those of the table, typed, followed by the meta columns. The schema is that of the
table's newest shape when the read begins. Older rows lack what was added later (NULL). When a
stream meets a newer shape it stops with one line; started again on its checkpoint it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailrace.decode import TableChanges, change_schema
from tailrace.errors import ConfigError, SchemaError
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Offset, Relation
from tailrace.spark.options import ReadOptions, one_line_errors
from tailrace.spark.planning import BatchEnds, LogPartition, decode_pieces, partitions

Column: TypeAlias = "pa.ChunkedArray[Any]"
Field: TypeAlias = "pa.Field[Any]"


class TailraceDataSource(DataSource):
    """Register with `spark.dataSource.register(TailraceDataSource)`."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format("tailrace")`."""
        return "tailrace"

    def schema(self) -> StructType:
        """The table's newest shape, with the meta columns."""
        with one_line_errors():
            options = ReadOptions.of(self.options)
            relation = newest_relation(options.reader(), options.table)
            return from_arrow_schema(change_schema(relation, options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        with one_line_errors():
            return TableReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        with one_line_errors():
            return TableStreamReader(ReadOptions.of(self.options), schema)


def newest_relation(reader: Reader, table: str) -> Relation:
    """The last shape of a table that the log has seen."""
    newest: Relation | None = None
    known: set[str] = set()
    for link in reader.walk(Offset.whole(reader.begin())):
        for use in sorted(link.header.relations, key=lambda use: use.since):
            known.add(use.relation.qualified)
            if use.relation.qualified == table:
                newest = use.relation
    if newest is None:
        raise ConfigError(
            f"the log holds no change of {table}", hint=f"tables: {', '.join(sorted(known))}"
        )
    return newest


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
        assert isinstance(partition, LogPartition)
        options = self._options
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with one_line_errors():
            store = options.reader().store
            found = decode_pieces(store, partition.pieces, self._wants, options.columns)
            for changes in found:
                yield from fitted(changes, schema).to_batches()


def fitted(changes: TableChanges, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns; raises SchemaError if one has another type."""
    rows = changes.rows
    columns = [
        _fitted_column(rows, schema.field(i), changes.relation) for i in range(len(schema.names))
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fitted_column(rows: pa.Table, field: Field, relation: Relation) -> Column:
    if field.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(len(rows), field.type)])
    column = rows.column(field.name)
    if column.type == field.type:
        return column
    if pa.types.is_struct(field.type):
        return pa.chunked_array([_fitted_before(column, field, relation)])
    if pa.types.is_nested(field.type):
        # Lists and maps differ from Spark's in the names of their inner fields only.
        return column.cast(field.type)
    raise _retyped(relation, field.name)


def _fitted_before(column: Column, field: Field, relation: Relation) -> pa.StructArray:
    before = column.combine_chunks()
    assert isinstance(before, pa.StructArray)
    known = {before.type.field(i).name: i for i in range(before.type.num_fields)}
    fields = [field.type.field(i) for i in range(field.type.num_fields)]
    parts = []
    for inner in fields:
        if inner.name not in known:
            parts.append(pa.nulls(len(before), inner.type))
            continue
        part = before.field(known[inner.name])
        if part.type != inner.type:
            raise _retyped(relation, inner.name)
        parts.append(part)
    return pa.StructArray.from_arrays(parts, fields=fields, mask=before.is_null())


def _retyped(relation: Relation, column: str) -> SchemaError:
    return SchemaError(
        f"{relation.qualified}.{column} has another type in the log",
        hint="start the query again: it goes on with the table's new shape",
    )


class TableReader(_Table, DataSourceReader):
    """One batch read of `(start, end]`."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            reader = self._options.reader()
            after, upto = self._options.start(reader), self._options.end(reader)
            return self._plan(reader, after, upto)


class TableStreamReader(_Table, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches, none of which crosses a change of the table's shape."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._ends: BatchEnds | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ends": None}

    def initialOffset(self) -> dict[str, int]:
        """Spark asks again after a crash: name a fixed position if that must not differ."""
        with one_line_errors():
            return self._options.start(self._options.reader()).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Rows are Spark's limit; bytes are applied here as well."""
        options = self._options
        if options.changes_max is not None:
            return ReadMaxRows(options.changes_max)
        return ReadMaxBytes(options.limits.bytes_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the batch ends."""
        with one_line_errors():
            return self._batch_ends().next(Offset.from_dict(start), limit).to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end."""
        with one_line_errors():
            self._batch_ends().stop_at_tip()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            reader = self._options.reader()
            after, upto = Offset.from_dict(start), Offset.from_dict(end)
            self._must_fit(reader, after, upto)
            return self._plan(reader, after, upto)

    def _must_fit(self, reader: Reader, after: Offset, upto: Offset) -> None:
        """A shape newer than the query's schema ends the query; an older one is read with it."""
        names = set(self._schema.fieldNames())
        for link in reader.walk(after):
            for use in link.header.relations:
                is_read = self._wants(use.relation) and use.since <= upto
                if is_read and not names.issuperset(use.relation.column_names):
                    self._explain(reader, use.relation)
            if Offset.whole(link.header.end) >= upto:
                return

    def _explain(self, reader: Reader, relation: Relation) -> None:
        newest = newest_relation(reader, self._options.table)
        if self._options.columns is None and set(relation.column_names) <= set(newest.column_names):
            raise SchemaError(
                f"{relation.qualified} has a new shape",
                hint="start the query again: it goes on with the new columns",
            )

    def _batch_ends(self) -> BatchEnds:
        if self._ends is None:
            options = self._options
            self._ends = BatchEnds(options.reader(), limits=options.limits, wanted=self._wants)
        return self._ends
