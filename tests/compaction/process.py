"""Compacts a log in a process of its own."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tailrace.compaction import Compactor, rewriting
from tailrace.spark import planning
from tailrace.storage import MemoryStore, open_store
from tests.memory import peak_bytes
from tests.spark.made_log import MadeLog, Table


def here(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Tasks in this process."""
    return [task(item) for item in items]


def main(url: str) -> None:
    """Compact it once."""
    Compactor(open_store(url), here).compact()


def weigh(url: str) -> None:
    """Compact it, all in pieces of little more than 1 MB; say by how much the process has grown
    since it has loaded everything, and how large a task has been.
    """
    sizes = [0]

    def weighed(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        sizes.append(len(pickle.dumps(task)))
        return here(task, items)

    log = MadeLog(MemoryStore())
    log.insert(Table(), 1)
    Compactor(log.store, here).compact()
    before = peak_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "PART_BYTES", 1 << 20)
        patch.setattr(planning, "PARTITION_BYTES", 1 << 20)
        Compactor(open_store(url), weighed, step_bytes=3 << 20).compact()
    sys.stdout.write(f"{peak_bytes() - before} {max(sizes)}\n")
    sys.stdout.flush()
