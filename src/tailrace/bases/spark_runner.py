"""Reads stretches in Spark tasks.

Tasks get numbers of stretches and look up the rest in what was sent with the function, so that what
the UI and the logs show holds neither names nor the DSN. It is a plain RDD: to plan and compile a
query for a few tasks takes Spark as long as reading half a million rows. What a task has read is in
the log; only names and counts come back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.bases.reading import Outcome, Reading, read_stretches
from tailrace.bases.stretch import Stretch
from tailrace.errors import TailraceError
from tailrace.spark.planning import worker_store
from tailrace.storage import Store

_STRETCHES_PER_TASK: Final = 16
"""A task costs a session and 0.2 s, as much as a stretch: one for each core, unless there is more
to read than that many stretches for each, where a core that is slow must not have the last word.
"""


class SparkRunner:
    """A `Runner` on a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._group = f"tailrace-base-{secrets.token_hex(4)}"

    @property
    def width(self) -> int:
        """See `Runner`."""
        return int(self._spark.sparkContext.defaultParallelism)

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        """See `Runner`."""
        spark = self._spark.sparkContext
        turns = max(1, len(stretches) // (self.width * _STRETCHES_PER_TASK))
        task_count = min(len(stretches), self.width * turns)
        # Of this thread alone; `interruptTag` of a classic session does not find Python's jobs.
        spark.setJobGroup(self._group, "tailrace base", interruptOnCancel=True)
        read = _task(reading, store.url, tuple(stretches))
        try:
            return (
                spark.parallelize(range(len(stretches)), task_count).mapPartitions(read).collect()
            )
        except (PySparkException, Py4JError) as error:
            reason = str(error).partition("\n")[0]
            raise TailraceError(f"the tasks of a base failed: {reason}", retry=True) from error

    def cancel(self) -> None:
        """See `Runner`."""
        self._spark.sparkContext.cancelJobGroup(self._group)


def _task(
    reading: Reading, log_url: str, stretches: tuple[Stretch, ...]
) -> Callable[[Iterable[int]], Iterator[Outcome]]:
    def read(numbers: Iterable[int]) -> Iterator[Outcome]:
        """Runs on an executor."""
        wanted = (stretches[number] for number in numbers)
        yield from read_stretches(reading, worker_store(log_url), wanted)

    return read
