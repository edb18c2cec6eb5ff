"""A program that delivers a log to a sink, for a test that kills it on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.sinks import open_sink
from tailrace.spark.session import spark_session
from tailrace.storage import open_store
from tests.streams.by_hand import Run

STREAM = "orders"
CHANGES_MAX = 8


def main(log: str, options: str, jars: str = "", work_dir: str = "") -> None:
    """To the end of the log, in small batches; with `jars`, by a Spark session of its own."""
    os.environ.update(NO_PROXY="127.0.0.1", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    session = None
    if jars:
        settings = {"spark.jars": jars, "spark.ui.enabled": "false"}
        session = spark_session(
            master="local[1]", app_name="killed", settings=settings, work_dir=Path(work_dir)
        )
    deliver(log, options, session)


def deliver(log: str, options: str, session: SparkSession | None = None) -> None:
    """In this process."""
    store = open_store(log)
    sink = open_sink(json.loads(options), session=session, store=store, stream=STREAM)
    Run(store, sink, stream=STREAM, changes_max=CHANGES_MAX).to_end()
    sink.close()
