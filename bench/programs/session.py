"""The Spark session of a program that measures a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.spark.session import spark_session


@contextmanager
def bench_session(cores: int, work_dir: Path) -> Iterator[SparkSession]:
    """On so many cores; what the pipeline says goes to the program's log."""
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = spark_session(master=f"local[{cores}]", app_name="tailrace bench", work_dir=work_dir)
    try:
        yield spark
    finally:
        spark.stop()
