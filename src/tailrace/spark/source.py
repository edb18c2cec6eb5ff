"""The `tailrace` format: the changes of one table as a Spark DataFrame, in batch and as a stream.

The columns are those of the table, typed, followed by the meta columns. The schema is that of the
table's newest shape in the range when the read begins; older rows are read under it. When a stream
meets a newer shape it stops with one line; started again on its checkpoint it goes on.

A read starts with the table's base, if there is one and it is not told otherwise: the rows of the
base as inserts, then the changes after its position, so that both together are the table.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tailrace.spark.options import ReadOptions, one_line_errors
from tailrace.spark.table import TableReader
from tailrace.spark.table_stream import TableStreamReader


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
