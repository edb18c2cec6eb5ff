"""Spark's workers are this interpreter, and load what is installed instead of Spark's archives."""

from __future__ import annotations

import os
import site
import subprocess
import sys

import pyspark
import pytest
from pyspark.sql import SparkSession

from tailrace.spark.python import worker_environment, worker_python


def test_archives_of_spark_alone_are_left_off_the_path() -> None:
    archives = ["/a b/lib/pyspark.zip", "/lib/py4j-0.10.9.9-src.zip", "/jars/spark-core_2.13-4.jar"]
    path = os.pathsep.join([*archives, "/mine/src", "/mine/more.zip", *archives, "/the end"])
    environment = {**worker_environment(), "TAILRACE_PYTHON": "/bin/sh", "PYTHONPATH": path}
    words = [worker_python(), "-c", 'echo "$PYTHONPATH, $1"', "sh", "a b"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert result.stdout == "/mine/src:/mine/more.zip:/the end, a b\n"


def test_pyspark_that_is_not_installed_beside_python_comes_from_the_archives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/elsewhere"])
    assert worker_python() == sys.executable


def test_worker_has_the_drivers_modules(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__))
    assert found.collect() == [(sys.executable, pyspark.__file__)]
