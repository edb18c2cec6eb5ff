"""One Spark session with Delta for all sink tests, and a harness for each sink that they run
over.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.sinks.harness import DeltaHarness, Harness, MemoryHarness

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"

SPARK: Final = [pytest.mark.spark, pytest.mark.server]

_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
}


def pytest_configure(config: pytest.Config) -> None:
    """Give Delta to whichever test starts Spark first: a process has one Java, and its jars are
    fixed then.
    """
    config.addinivalue_line("markers", "spark: runs Delta on Spark, whose jar comes from Maven")
    settings = " ".join(f"--conf {name}={value}" for name, value in _SETTINGS.items())
    os.environ.setdefault(
        "PYSPARK_SUBMIT_ARGS", f"--packages {DELTA_PACKAGE} {settings} pyspark-shell"
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def delta_session() -> Iterator[SparkSession]:
    """Spark with Delta. The session is not ended: other tests of the process may use it as well."""
    yield SparkSession.builder.master("local[2]").getOrCreate()


@pytest.fixture(params=["memory", "deltalake", pytest.param("delta-spark", marks=SPARK)])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Every sink that keeps rows."""
    yield from _harness(request, tmp_path)


@pytest.fixture(params=["deltalake", pytest.param("delta-spark", marks=SPARK)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A lake written by each engine."""
    yield from _harness(request, tmp_path)


def _harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    name = str(request.param)
    if name == "memory":
        yield MemoryHarness()
        return
    session = request.getfixturevalue("delta_session") if name == "delta-spark" else None
    lake = DeltaHarness(str(tmp_path / "lake"), session)
    yield lake
    lake.close()
