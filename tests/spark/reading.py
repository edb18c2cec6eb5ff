"""Reads of the `tailrace` format as a user writes them, and what they must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Offset, Relation
from tailrace.spark import TailraceDataSource
from tailrace.spark.options import ERROR_PREFIX
from tailrace.spark.planning import decode_pieces
from tests.spark.made_log import MadeLog

Rows = list[dict[str, object]]


def in_order(rows: pa.Table) -> Rows:
    """The rows by offset."""
    return rows.sort_by([("_commit_lsn", "ascending"), ("_ordinal", "ascending")]).to_pylist()


def decoded(log: MadeLog, table: str, after: Offset, upto: Offset) -> Rows:
    """The rows that a read of `(after, upto]` must show, without Spark."""

    def wanted(relation: Relation) -> bool:
        return relation.qualified == table

    planned = pieces(Reader(log.store), after, upto, wanted=wanted)
    found = [changes.rows for changes in decode_pieces(log.store, planned, wanted, None)]
    return in_order(pa.concat_tables(found)) if found else []


@dataclass(frozen=True)
class Reads:
    """Reads of one log, in one session."""

    spark: SparkSession
    log: MadeLog
    directory: Path

    def batch(self, **options: object) -> DataFrame:
        """`spark.read`, of the orders unless told otherwise."""
        return self.spark.read.format("tailrace").options(**self._told(options)).load()

    def stream(self, **options: object) -> DataFrame:
        """`spark.readStream`, likewise."""
        return self.spark.readStream.format("tailrace").options(**self._told(options)).load()

    def rows(self, **options: object) -> Rows:
        """The rows of a batch read, in order."""
        return in_order(self.batch(**options).toArrow())

    def start(
        self,
        frame: DataFrame,
        take: Callable[[pa.Table], None],
        *,
        available_now: bool = True,
        checkpoint: str = "checkpoint",
    ) -> StreamingQuery:
        """Start a query that hands each micro-batch to `take`."""

        def deliver(batch: DataFrame, _batch_id: int) -> None:
            take(batch.toArrow())

        writer = frame.writeStream.foreachBatch(deliver)
        writer = writer.option("checkpointLocation", str(self.directory / checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def batches(self, *, checkpoint: str = "checkpoint", **options: object) -> list[Rows]:
        """Run a stream to the end of the log; the rows of each micro-batch that has any."""
        found: list[Rows] = []
        query = self.start(
            self.stream(**options), lambda rows: found.append(in_order(rows)), checkpoint=checkpoint
        )
        query.awaitTermination()
        return [rows for rows in found if rows]

    def _told(self, options: dict[str, object]) -> dict[str, str]:
        self.spark.dataSource.register(TailraceDataSource)
        given = {"log": self.log.store.url, "table": "public.orders", **options}
        return {name: str(value) for name, value in given.items()}


def told(error: PySparkException) -> str:
    """The one line of ours in a Spark error."""
    lines = [line for line in str(error).splitlines() if ERROR_PREFIX in line]
    assert lines, f"no line of ours in {error}"
    return lines[-1].partition(ERROR_PREFIX)[2]
