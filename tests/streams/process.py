"""Delivers a log in a process of its own: `python -m tests.streams.process JSON`.

Two streams deliver the whole log, one folded and one as it is, on Spark until SIGTERM or until both
are at `until`; or, which is quick, by hand.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.model import Offset
from tailrace.sinks import Sink, open_sink
from tailrace.sinks.sink import stream_of
from tailrace.spark.session import spark_session
from tailrace.storage import open_store
from tailrace.streams import Pipeline, Stream
from tests.streams.by_hand import Run

MODES = {"lake": "upsert", "history": "append"}
"""The streams, and the directories of their tables."""


@dataclass(frozen=True)
class Task:
    """What the process is told."""

    log: str
    directory: str
    on_spark: bool
    until: str
    changes_max: int
    engine: str = "deltalake"
    packages: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    def sink(self, stream: str, session: SparkSession | None = None) -> Sink:
        """The lake of a stream."""
        options = {
            "type": "delta",
            "path": str(Path(self.directory, stream)),
            "mode": MODES[stream],
            "engine": self.engine,
        }
        return open_sink(options, session=session)


def main(argument: str) -> None:
    """Deliver."""
    task = Task(**json.loads(argument))
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if task.on_spark:
        deliver_on_spark(task)
    else:
        deliver_by_hand(task)


def deliver_by_hand(task: Task) -> None:
    """To the end of the log, in this process."""
    for stream in MODES:
        sink = task.sink(stream)
        Run(open_store(task.log), sink, stream=stream, changes_max=task.changes_max).to_end()
        sink.close()


def deliver_on_spark(task: Task) -> None:
    """The real pipeline."""
    work_dir = Path(task.directory, "work")
    spark = spark_session(
        master="local[1]",
        app_name="killed",
        packages=task.packages,
        settings={"spark.ui.enabled": "false", **task.settings},
        work_dir=work_dir,
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    streams = [
        Stream(name, ["public.*"], partial(_opened, task, spark), changes_max=task.changes_max)
        for name in MODES
    ]
    pipeline = Pipeline(streams, spark, open_store(task.log), work_dir=work_dir)
    until = Offset.parse(task.until)
    threading.Thread(target=_watch, args=(pipeline, until, stop), daemon=True).start()
    try:
        pipeline.run(stop)
    finally:
        spark.stop()


def _opened(task: Task, spark: SparkSession, name: str) -> Sink:
    return task.sink(stream_of(name), spark)


def _watch(pipeline: Pipeline, until: Offset, stop: threading.Event) -> None:
    while not stop.wait(0.02):
        delivered = [state.delivered for state in pipeline.states]
        if all(each is not None and each.position >= until for each in delivered):
            stop.set()


if __name__ == "__main__":
    main(sys.argv[1])
