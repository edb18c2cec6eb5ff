"""The Spark session that Tailrace works in: the one that is there, or a quiet one of our own.

Under spark-submit, in a notebook or with Spark Connect a session exists, and it belongs to its
maker: it is used as it is. Otherwise one is built, and then a local master is made to fit one small
machine: it talks over loopback only, runs its workers with this very interpreter, writes nothing to
the current directory and says nothing when all is well. Settings that the user gives always win.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError, TailraceError
from tailrace.spark.java import find_java
from tailrace.spark.python import worker_environment, worker_python

_LOOPBACK = "127.0.0.1"

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL_SETTINGS = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "4",
    # Delta reads each table's own log with 50 tasks: many seconds, where there are a few cores.
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists a table's directory with 10,000 tasks: minutes.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # Every job takes a buffer of this size for its code. The default, 4 MB, is so large that the
    # collector starts a whole cycle for it: 0.15 s of the processor.
    "spark.broadcast.blockSize": "256k",
    # What a task has decoded is some megabytes. Past this size Spark stores it and fetches it over
    # the network, from itself.
    "spark.task.maxDirectResultSize": "32m",
    # Other sessions on this machine have the ports from 4040 on.
    "spark.port.maxRetries": "200",
    # The default manager of local checkpoints starts a process for each file: 80 ms more a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}

_PLAIN_COMPILER = " -XX:TieredStopAtLevel=1"
"""Without further packages the JVM only plans, and hands on what Python has decoded and will write.
Measured: the optimising compiler takes as much of the processor as all of that, for the first
million changes and longer.
"""

_PLAIN_COLLECTOR = " -XX:+UseSerialGC"
"""Payloads are arrays of megabytes, and for each of them the default collector begins a whole
cycle: with five streams that was a third of the JVM's work.
"""

_JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_JVM_SETTING = "spark.driver.defaultJavaOptions"

_PLAIN_PLANS = {
    # Its rows are few and large, so a class that is compiled for a plan never pays.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def spark_session(
    *,
    master: str | None,
    app_name: str,
    packages: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    work_dir: Path | None = None,
) -> SparkSession:
    """Return the session that exists, else build one.

    `master` None leaves it to spark-submit or Spark's own configuration. `packages` are Maven
    coordinates to load.
    `work_dir` holds what Spark writes for itself, until it ends.
    """
    if (present := _present_session()) is not None:
        return present
    options = {**_SETTINGS, "spark.app.name": app_name}
    if packages:
        options["spark.jars.packages"] = ",".join(packages)
    if master is not None and master.startswith("local"):
        options |= _local_options(work_dir)
        if not packages:
            options |= _PLAIN_PLANS
            options["spark.driver.extraJavaOptions"] += plain_jvm(
                {**os.environ, **(settings or {})}
            )
    options |= settings or {}
    with _launch_environment(master), _signals_kept():
        return _build(master, options)


def plain_jvm(given: Mapping[str, str]) -> str:
    """Options for a JVM that does little, beside those that variables and settings give. It refuses
    to start with two collectors.
    """
    chosen = " ".join(given.get(name, "") for name in (*_JVM_VARIABLES, _JVM_SETTING))
    return _PLAIN_COMPILER + ("" if "GC" in chosen else _PLAIN_COLLECTOR)


def _present_session() -> SparkSession | None:
    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _local_options(work_dir: Path | None) -> dict[str, str]:
    log_config = Path(__file__).with_name("log4j2.properties").as_uri()
    options = {
        **_LOCAL_SETTINGS,
        "spark.pyspark.python": worker_python(),
        "spark.pyspark.driver.python": worker_python(),
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={log_config}"',
    }
    if work_dir is None:
        options["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir(), "tailrace-warehouse"))
    else:
        options["spark.sql.warehouse.dir"] = str(work_dir.resolve() / "warehouse")
        options["spark.local.dir"] = str(work_dir.resolve() / "scratch")
    return options


def _build(master: str | None, options: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    if master is not None:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for name, value in options.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise ConfigError(
            f"spark does not start: {error}",
            hint="check spark.master, JAVA_HOME and the messages above",
        ) from error


@contextmanager
def _launch_environment(master: str | None) -> Iterator[None]:
    """Set what Spark's scripts read, only while they run; spark-submit has run them already."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or (master or "").startswith("sc://"):
        yield
        return
    variables = find_java().environment()
    if master is not None and master.startswith("local"):
        variables |= worker_environment()
        variables["SPARK_LOCAL_IP"] = _LOOPBACK  # where the UI listens
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the program's own answer to Ctrl-C, which a new SparkContext replaces."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def spark_is_needed() -> Iterator[None]:
    """Raise TailraceError if Spark's own process turns out to be gone in the block."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        raise TailraceError(
            "spark has gone away", hint="its own messages are above; start again"
        ) from error
