"""Where the tasks of a compaction run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
Run: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Runs a task for each item, anywhere, and gives the results in order."""


def on_spark(spark: SparkSession) -> Run:
    """One Spark task for each item."""

    def run(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if not items:
            return []
        return spark.sparkContext.parallelize(items, len(items)).map(task).collect()

    return run


def give_back() -> None:
    """Of what a step or a task has had: a process lives on, and Arrow would keep as much again."""
    pa.default_memory_pool().release_unused()
