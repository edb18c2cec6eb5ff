"""Stretches read by Spark tasks: the same base as by threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from tailrace.bases.spark_runner import SparkRunner
from tailrace.errors import SourceError
from tailrace.log.bases import newest_positions
from tailrace.storage import FileStore
from tests.bases.oracle import assert_equal
from tests.bases.taking import PATIENT, captured, take
from tests.capture.running import wait_caught_up, wait_until
from tests.server import Database


def test_a_base_read_by_spark_tasks_and_the_changes_after_it_are_the_source(
    database: Database, source: psycopg.Connection, store: FileStore, spark: SparkSession
) -> None:
    with captured(database, store, source, "t") as capture:
        (result,) = take(database.dsn, store, runner=SparkRunner(spark))
        assert result.base is not None and len(result.base.parts) > 1
        source.execute("UPDATE t SET v = 'new' WHERE id % 2 = 0")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def test_told_to_stop_the_job_is_given_up_and_there_is_no_base(
    database: Database, source: psycopg.Connection, store: FileStore, spark: SparkSession
) -> None:
    stop = threading.Event()
    slow = replace(PATIENT, bytes_per_s=10)
    with captured(database, store, source, "t"):
        with pytest.raises(SourceError, match="told to stop"):
            take(
                *(database.dsn, store),
                runner=SparkRunner(spark),
                limits=slow,
                stop=stop,
                show=lambda _: stop.set(),
            )
        assert newest_positions(store) == {}
        tracker = spark.sparkContext.statusTracker()
        wait_until(lambda: list(tracker.getActiveJobsIds()) == [])


def test_nothing_that_spark_shows_holds_the_password(
    database: Database, source: psycopg.Connection, store: FileStore, spark: SparkSession
) -> None:
    secret = "swordfish-4711"
    with captured(database, store, source, "t"):
        take(make_conninfo(database.dsn, password=secret), store, runner=SparkRunner(spark))
    shown = _shown_stages(spark)
    assert any("spark_runner.py" in stage for stage in shown)
    assert not any(secret in stage for stage in shown)


def _shown_stages(spark: SparkSession) -> list[str]:
    """What the UI shows of the stages of this session's jobs."""
    store = spark._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    stages = [jobs.apply(i).stageIds() for i in range(jobs.size())]
    numbers = [each.apply(i) for each in stages for i in range(each.size())]
    shown = [store.lastStageAttempt(number) for number in numbers]
    return [f"{each.name()} {each.description()} {each.details()}" for each in shown]
