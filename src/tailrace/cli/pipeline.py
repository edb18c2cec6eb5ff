"""`tailrace pipeline`: from the log to the sinks on Spark, until told to stop."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.cli.config import Config
    from tailrace.cli.config import Stream as StreamSection
    from tailrace.control.streams import StreamRow
    from tailrace.storage import Store
    from tailrace.streams import Pipeline, Stream

logger = logging.getLogger(__name__)


def pipeline(
    config: ConfigFile = None,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", help="Only this stream; may be repeated.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Take up every table anew, from its base.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Deliver the log to the sinks, each stream by a Spark query of its own.

    A stream goes on where it was, whatever ended it. One that fails for good
    does not stop the others, and waits for `tailrace stream resume`; only where
    the streams' table cannot be had, the command ends when all have stopped.
    Ctrl-C ends all cleanly.

    Example: tailrace pipeline --stream lake
    """
    from tailrace.cli.bases import automatic_bases
    from tailrace.cli.children import stop_with_parent
    from tailrace.cli.config import load
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.synchronising import control_of, synchronise
    from tailrace.cli.verifying import plans
    from tailrace.exposition import serve
    from tailrace.spark.session import spark_is_needed
    from tailrace.storage import open_store
    from tailrace.streams import Pipeline
    from tailrace.streams.metrics import StreamMetrics
    from tailrace.streams.record import StreamRecord
    from tailrace.verify.schedule import Schedule

    settings = load(config)
    chosen = _choose(settings, synchronise(settings), stream)
    store = open_store(settings.log.url)
    metrics = StreamMetrics(settings.source.name, store)
    if (port := settings.pipeline.metrics_port) is not None:
        serve(metrics.registry, port, setting="pipeline.metrics_port")
    with StopSignals() as signals:
        is_child = stop_with_parent(signals.event)
        if reset:
            for name in chosen:
                StreamRecord(store, name).forget()
        with _ending_at_once(signals.event):
            spark = start_spark(settings)
        try:
            only = frozenset(chosen) if stream else None
            make = partial(_stream, spark=spark, store=store, root=settings.root)
            control = control_of(settings, store, make, only=only)
            declared = set(chosen) & set(settings.streams)
            due = plans(settings, store, declared, signals.event, spark)
            Schedule(store, due, signals.event, may_run=control.leads).start()
            work_dir = settings.directory / "spark"
            compaction_s = settings.log.compaction_interval.total_seconds()
            with spark_is_needed(), automatic_bases(settings, store, spark):
                running = Pipeline(
                    [],
                    spark,
                    store,
                    work_dir=work_dir,
                    compaction_interval_s=compaction_s,
                    control=control,
                    # Whoever started us would end as well, and capture with it.
                    stays=is_child,
                )
                metrics.watch(lambda: running.places, lambda: control.is_slot_lost)
                _run(running, signals.event)
        finally:
            stop_spark(spark)


def _run(running: Pipeline, stop: threading.Event) -> None:
    from tailrace.cli.signals import end_soon

    try:
        running.run(stop)
    finally:
        if running.is_left:
            end_soon()


def _choose(
    settings: Config, rows: Sequence[StreamRow] | None, asked: Sequence[str] | None
) -> list[str]:
    """The streams to deliver: those that are asked for, else all of the file and of SQL. Without
    any, a pipeline that reaches the control schema waits for the first.
    """
    known = [row.name for row in rows] if rows is not None else list(settings.streams)
    if not known and (rows is None or asked):
        raise ConfigError(
            "there is no stream to deliver", hint='streams: {lake: {tables: ["public.*"]}}'
        )
    for name in asked or ():
        if name not in known:
            raise ConfigError(f"there is no stream {name}", hint=f"one of: {', '.join(known)}")
    return list(asked or known)


def start_spark(settings: Config) -> SparkSession:
    from tailrace.spark.session import spark_session

    logger.info("starting spark master=%s", settings.spark.master)
    spark = spark_session(
        master=settings.spark.master,
        app_name=f"tailrace {settings.source.name}",
        packages=settings.spark.packages,
        settings=settings.spark.settings,
        work_dir=settings.directory / "spark",
    )
    logger.info("spark started ui=%s", spark.sparkContext.uiWebUrl)
    return spark


@contextmanager
def _ending_at_once(stop: threading.Event) -> Iterator[None]:
    """Told to stop during the block, the process ends: the start of Spark cannot be interrupted,
    and nothing is under way yet that could be lost.
    """
    is_over = threading.Event()

    def watch() -> None:
        stop.wait()
        if not is_over.is_set():
            os._exit(0)

    threading.Thread(target=watch, name="early-stop", daemon=True).start()
    yield
    is_over.set()


def stop_spark(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    try:
        spark.stop()
    except (Py4JError, ConnectionError) as error:
        # Who stops a service may signal all its processes at once, Spark's own among them.
        logger.debug("spark has ended before us error=%s", error)


def _stream(
    name: str, section: StreamSection, spark: SparkSession, store: Store, root: Path
) -> Stream:
    from tailrace.cli.other_sink import open_other_sink
    from tailrace.sinks import Sink, open_sink
    from tailrace.spark.selection import Selection
    from tailrace.streams import Stream

    def open_own_sink(name: str) -> Sink:
        options = section.sink.model_dump(by_alias=True)
        return open_sink(options, session=spark, store=store, stream=name)

    return Stream(
        name=name,
        tables=section.tables,
        open_sink=open_own_sink,
        trigger_s=section.trigger_interval.total_seconds(),
        changes_max=section.max_changes_per_batch,
        bytes_max=section.max_bytes_per_batch,
        selection=Selection.of(columns=section.columns, where=section.where, key=section.key),
        open_other_sink=partial(open_other_sink, root=root, spark=spark, store=store),
    )
