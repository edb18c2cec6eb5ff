"""Reads stretches in Spark tasks.

Tasks get numbers of stretches from a plain range and look up the rest in what was sent with the
function, so that a plan, as the UI and the logs show it, holds neither names nor the DSN. What a
task has read is in the log; only names and counts come back.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.bases.reading import Failure, Outcome, Reading, read_stretches
from tailrace.bases.stretch import Stretch
from tailrace.errors import TailraceError
from tailrace.log import BasePart
from tailrace.spark.planning import worker_store
from tailrace.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS_PER_CORE: Final = 2
"""So that the cores are busy to the end; a task costs a session and some of Spark's time."""


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
        task_count = min(len(stretches), self.width * _TASKS_PER_CORE)
        numbers = self._spark.range(0, len(stretches), 1, numPartitions=task_count)
        # Of this thread alone; `interruptTag` of a classic session does not find Python's jobs.
        self._spark.sparkContext.setJobGroup(self._group, "tailrace base", interruptOnCancel=True)
        read = _task(reading, store.url, tuple(stretches))
        try:
            rows = numbers.mapInArrow(read, "outcome string").collect()
        except PySparkException as error:
            reason = str(error).partition("\n")[0]
            raise TailraceError(f"the tasks of a base failed: {reason}", retry=True) from error
        return [_from_json(row.outcome) for row in rows]

    def cancel(self) -> None:
        """See `Runner`."""
        self._spark.sparkContext.cancelJobGroup(self._group)


def _task(
    reading: Reading, log_url: str, stretches: tuple[Stretch, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        import pyarrow as pa

        numbers = (number for batch in batches for number in batch.column("id").to_numpy())
        wanted = (stretches[int(number)] for number in numbers)
        for outcome in read_stretches(reading, worker_store(log_url), wanted):
            yield pa.RecordBatch.from_pydict({"outcome": [json.dumps(asdict(outcome))]})

    return read


def _from_json(text: str) -> Outcome:
    value = json.loads(text)
    parts = tuple(BasePart(**part) for part in value["parts"])
    failure = Failure(value["failure"]) if value["failure"] else None
    return Outcome(value["oid"], value["number"], parts, failure, value["message"], value["hint"])
