"""A program that uses Spark as an ordinary user would, and writes what it saw as one line of JSON.

Run by a test in an empty directory, on a path without Java, with the interpreter of a virtual
environment that nobody has activated. Nothing but that line may reach the terminal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.spark.session import spark_session


def main() -> None:
    """Start a session, run a good and a bad job in Python workers, report, stop."""
    handler = signal.getsignal(signal.SIGINT)
    variables = dict(os.environ)
    work_dir = Path(sys.argv[1])
    spark = spark_session(
        master="local[1]",
        app_name="lone",
        settings={"spark.ui.port": "0", "spark.sql.shuffle.partitions": "3"},
        work_dir=work_dir,
    )
    assert spark.sparkContext._jvm is not None
    report = {
        "java": spark.sparkContext._jvm.java.lang.System.getProperty("java.version"),
        "worker": spark.range(1).mapInArrow(_interpreter, "path string").collect()[0].path,
        "ui": spark.sparkContext.uiWebUrl,
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "fault": _fault(spark),
        "same": spark is spark_session(master="local[2]", app_name="other"),
        "keeps_signal": signal.getsignal(signal.SIGINT) == handler,
        "keeps_environment": {
            name: value for name, value in os.environ.items() if name in variables
        }
        == variables,
    }
    spark.sql("CREATE TABLE kept AS SELECT 1 AS n")
    report["warehouse"] = (work_dir / "warehouse" / "kept").is_dir()
    spark.stop()
    sys.stdout.write(json.dumps(report) + "\n")


def _interpreter(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [sys.executable]})


def _fault(spark: SparkSession) -> bool:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("tailrace: a fault on purpose")

    try:
        spark.range(1).mapInArrow(fail, "path string").collect()
    except PySparkException as error:
        return "tailrace: a fault on purpose" in str(error)
    return False


if __name__ == "__main__":
    main()
