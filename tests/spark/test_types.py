"""Every type through the `tailrace` format: what Spark holds is what the source has."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.log import Writer
from tailrace.postgres.description import describe
from tailrace.spark import TailraceDataSource
from tailrace.storage import FileStore
from tests.decode.kinds import KINDS
from tests.decode.live import ODD, Live
from tests.log.making import begin
from tests.server import Database


def test_f063_f069_values_of_every_type_reach_spark(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "log")
    spark.dataSource.register(TailraceDataSource)
    with Live.on(database) as live:
        live.insert_edges(ODD)
        frames = live.frames()
        writer = Writer(
            store, begin(store), writer_id="w", describe=lambda new: describe(live.ours, new)
        )
        writer.append(frames)
        read = spark.read.format("tailrace").options(log=store.url, table=f"public.{ODD}").load()
        rows = read.toArrow().sort_by("id")
        for kind, texts in zip(KINDS, live.texts(ODD), strict=True):
            assert live.rendered(rows, kind) == texts, kind
