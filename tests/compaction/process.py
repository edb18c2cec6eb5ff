"""Compacts a log in a process of its own."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tailrace.compaction import Compactor
from tailrace.storage import open_store


def here(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Tasks in this process."""
    return [task(item) for item in items]


def main(url: str) -> None:
    """Compact it once."""
    Compactor(open_store(url), here).compact()


def weigh(url: str, step_bytes: str) -> None:
    """Compact it, and say how much memory Arrow has had at most, and how large a task has been."""
    sizes = [0]

    def weighed(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        sizes.append(len(pickle.dumps(task)))
        return here(task, items)

    Compactor(open_store(url), weighed, step_bytes=int(step_bytes)).compact()
    sys.stdout.write(f"{pa.default_memory_pool().max_memory()} {max(sizes)}\n")
    sys.stdout.flush()
