"""Compacts a log in a process of its own: `python -m tests.compaction.process URL`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.compaction import Compactor
from tailrace.storage import open_store


def here(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Tasks in this process."""
    return [task(item) for item in items]


if __name__ == "__main__":
    Compactor(open_store(sys.argv[1]), here).compact()
