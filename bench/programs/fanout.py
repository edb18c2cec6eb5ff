"""The real pipeline with one stream, and with several, on the same log in one Spark session.

A run begins on a log that ends early. When every stream has delivered that, and everything is warm,
the rest of the log is there at once: the clock runs until every stream has delivered it too.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.programs.session import bench_session
from bench.programs.talk import say, stop_with_parent, task
from bench.programs.usage import session_cpu_s
from tailrace.log import layout
from tailrace.sinks import open_sink
from tailrace.storage import open_store
from tailrace.streams import Pipeline, Stream

_POLL_S = 0.01


def main() -> None:
    """Every round runs each number of streams once; the first rounds only warm up."""
    wanted = task()
    stop = stop_with_parent()
    directory = Path(wanted["directory"])
    with bench_session(wanted["cores"], directory) as spark:
        for number in range(wanted["rounds"]):
            for count in wanted["stream_counts"]:
                run = Run(spark, directory / f"run-{number}-{count}", wanted, stop)
                seconds, cpu_s = run.measure(count)
                say("run", round=number, streams=count, seconds=seconds, cpu_s=cpu_s)
        say("done")


class Run:
    """One pipeline with some streams, on a log of its own."""

    def __init__(
        self, spark: SparkSession, directory: Path, wanted: dict[str, Any], stop: threading.Event
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._wanted = wanted
        self._stop = stop

    def measure(self, stream_count: int) -> tuple[float, float]:
        """How long it took, and how long the processors have worked for it."""
        log = self._directory / "log"
        shutil.copytree(self._wanted["early_log"], log)
        streams = [self._stream(f"lake{number}") for number in range(stream_count)]
        store = open_store(log.as_uri())
        pipeline = Pipeline(streams, self._spark, store, work_dir=self._directory)
        end = threading.Event()
        running = threading.Thread(target=pipeline.run, args=[end], daemon=True)
        running.start()
        try:
            self._wait(pipeline, self._wanted["ready_at"])
            began, cpu_began_s = time.monotonic(), session_cpu_s()
            _grow(log, Path(self._wanted["whole_log"]))
            self._wait(pipeline, self._wanted["end"])
            found = time.monotonic() - began, session_cpu_s() - cpu_began_s
            self._check(pipeline)
        finally:
            end.set()
            running.join()
            shutil.rmtree(self._directory, ignore_errors=True)
        return found

    def _stream(self, name: str) -> Stream:
        sink = {**self._wanted["sink"], "path": str(self._directory / name)}
        return Stream(name, ["public.*"], lambda _: open_sink(sink, session=self._spark))

    def _wait(self, pipeline: Pipeline, position: int) -> None:
        """Until every stream has delivered up to there."""
        while not all(
            (delivered := state.delivered) is not None and delivered.position.commit_lsn >= position
            for state in pipeline.states
        ):
            if self._stop.wait(_POLL_S):
                raise SystemExit("told to stop")

    def _check(self, pipeline: Pipeline) -> None:
        counts = [each.delivered.change_count for each in pipeline.states if each.delivered]
        if set(counts) != {self._wanted["changes"]}:
            raise SystemExit(f"{counts} of {self._wanted['changes']} changes were delivered")


def _grow(log: Path, whole: Path) -> None:
    """Add all changes that are missing, in the order of the log."""
    for level in (layout.PARTS, layout.MERGED, layout.SEGMENTS):
        for source in sorted((whole / level).glob("*.arrow")):
            target = log / level / source.name
            if not target.exists():
                target.parent.mkdir(exist_ok=True)
                os.link(source, target)


if __name__ == "__main__":
    main()
