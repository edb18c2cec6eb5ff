"""The Spark query of a stream: what it reads, and how it is started.

It starts on a fresh checkpoint each time: the stream's record says where to go on, so a damaged
checkpoint can lose nothing.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.spark.options import BATCH_BYTES, NO_LIMIT
from tailrace.spark.packed import PackedDataSource, PackedOptions, ReadTable
from tailrace.streams.delivery import Delivery
from tailrace.streams.relay import Relay
from tailrace.streams.resume import Resume
from tailrace.streams.stream import Stream


def read_options(stream: Stream, log: str, delivery: Delivery, at: Resume) -> PackedOptions:
    """Each table from where it stands, once what was due is loaded; `at` is where the run began."""
    return PackedOptions(
        log=log,
        tables=tuple(
            ReadTable(table.oid, table.qualified, table.position) for table in delivery.tables
        ),
        start=delivery.delivered.position,
        first_end=at.first_end,
        changes_max=stream.changes_max or NO_LIMIT,
        bytes_max=stream.bytes_max or BATCH_BYTES,
        selection=stream.selection,
    )


def start_query(
    spark: SparkSession,
    stream: Stream,
    options: PackedOptions,
    relay: Relay,
    *,
    checkpoints: Path,
) -> StreamingQuery:
    """Each micro-batch goes to `relay`; earlier checkpoints of the stream are deleted."""
    shutil.rmtree(checkpoints, ignore_errors=True)
    source = spark.readStream.format(PackedDataSource.name())
    packed = source.option("spec", options.to_option()).load()
    return (
        packed.writeStream.queryName(stream.name)
        .foreachBatch(relay)
        .option("checkpointLocation", (checkpoints / secrets.token_hex(8)).as_uri())
        .trigger(processingTime=f"{int(stream.trigger_s * 1000)} milliseconds")
        .start()
    )
