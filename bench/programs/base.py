"""Takes a base on Spark, again and again, beside a plain COPY and Spark's own reader.

Sessions and workers are warm: each way runs once before it is measured. What a way has written is
deleted before the next one begins, outside of its time: each finds the same disk and the same
memory.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from bench.programs.talk import say, stop_with_parent, task
from tailrace.bases import BaseSettings, BaseTaker
from tailrace.bases.spark_runner import SparkRunner
from tailrace.log import layout
from tailrace.postgres.quote import SourceNames
from tailrace.spark.session import spark_session
from tailrace.storage import open_store

DRIVER = "org.postgresql:postgresql:42.7.7"


def main(told: dict[str, Any]) -> None:
    """Measure each way in each round."""
    stop = stop_with_parent()
    spark, has_driver = _session(told)
    ways: dict[str, Callable[[], None]] = {
        "base": lambda: _take_base(told, spark, stop),
        "copy": lambda: _copy(told),
    }
    if has_driver:
        ways["jdbc"] = lambda: _read_jdbc(told, spark)
    for name, way in ways.items():
        way()
        _clear(told)
        say("warm", way=name)
    for _ in range(told["rounds"]):
        for name, way in ways.items():
            began = time.monotonic()
            way()
            say("read", way=name, seconds=time.monotonic() - began)
            _clear(told)
    say("done")
    spark.stop()


def _session(told: dict[str, Any]) -> tuple[SparkSession, bool]:
    def session(packages: list[str]) -> SparkSession:
        return spark_session(
            master=told["master"], app_name="bench", packages=packages, work_dir=_work_dir(told)
        )

    if not told["with_driver"]:
        return session([]), False
    try:
        return session([DRIVER]), True
    except Exception:
        return session([]), False


def _work_dir(told: dict[str, Any]) -> Path:
    return Path(told["directory"]) / "spark"


def _take_base(told: dict[str, Any], spark: SparkSession, stop: threading.Event) -> None:
    settings = BaseSettings(told["dsn"], SourceNames.of(told["source"]))
    taker = BaseTaker(settings, open_store(told["log"]), SparkRunner(spark), stop=stop)
    (result,) = taker.take([_oid(told["dsn"])])
    assert result.base is not None, result.error
    assert result.base.row_count == told["rows"]


def _oid(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT 'public.orders'::regclass::oid::bigint").fetchone()
    assert row is not None
    return int(row[0])


def _copy(told: dict[str, Any]) -> None:
    """To a file that is then as durable as a base is."""
    target = _copy_target(told)
    with target.open("wb") as file:
        command = [told["psql"], told["dsn"], "-qXc", "COPY public.orders TO STDOUT"]
        subprocess.run(command, stdout=file, check=True)
    subprocess.run(["sync", str(target)], check=True)


def _read_jdbc(told: dict[str, Any], spark: SparkSession) -> None:
    """In as many partitions as there are cores, to files, as a base is."""
    address = conninfo_to_dict(told["tcp_dsn"])
    reader = spark.read.jdbc(
        f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}",
        "public.orders",
        column="id",
        lowerBound=1,
        upperBound=told["rows"],
        numPartitions=int(spark.sparkContext.defaultParallelism),
        properties={
            "user": str(address["user"]),
            "driver": "org.postgresql.Driver",
            "fetchsize": "10000",
        },
    )
    reader.write.parquet(_jdbc_target(told).as_uri())


def _copy_target(told: dict[str, Any]) -> Path:
    return Path(told["directory"]) / "copy"


def _jdbc_target(told: dict[str, Any]) -> Path:
    return Path(told["directory"]) / "jdbc"


def _clear(told: dict[str, Any]) -> None:
    store = open_store(told["log"])
    store.delete(entry.key for entry in store.list(layout.BASES))
    _copy_target(told).unlink(missing_ok=True)
    shutil.rmtree(_jdbc_target(told), ignore_errors=True)


if __name__ == "__main__":
    main(task())
