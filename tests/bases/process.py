"""Takes bases as a process of its own."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import pytest

from tailrace.bases import reading, stretch
from tailrace.bases.reading import Outcome, Reading, read_stretches
from tailrace.bases.runner import ThreadRunner
from tailrace.bases.stretch import Stretch
from tailrace.storage import Store, open_store
from tests.bases.taking import take
from tests.memory import peak_bytes


def main(dsn: str, log_url: str) -> None:
    """Of every table in want of one."""
    logging.basicConfig(level=logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "PAGES_MIN", 2)
        patch.setattr(stretch, "PAGES_MAX", 2)
        results = take(dsn, open_store(log_url))
    sys.exit(any(result.error is not None for result in results))


class _OneTask(ThreadRunner):
    """Reads everything as one task of Spark would."""

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        return list(read_stretches(reading, store, stretches))


def weigh(dsn: str, log_url: str, warm_oid: str, oid: str) -> None:
    """Take a base in parts of 1 MB by one task, and say by how much the process has grown since it
    has taken another one.
    """
    store, runner = open_store(log_url), _OneTask()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PART_BYTES", 1 << 20)
        take(dsn, store, int(warm_oid), runner=runner)
        before = peak_bytes()
        take(dsn, store, int(oid), runner=runner)
    sys.stdout.write(f"{peak_bytes() - before}\n")
    sys.stdout.flush()
