"""Compacts a log in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tailrace.compaction import Compactor
from tailrace.storage import open_store


def here(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Tasks in this process."""
    return [task(item) for item in items]


def main(url: str) -> None:
    """Compact it once."""
    Compactor(open_store(url), here).compact()
