"""A writer killed at any step, and started again: every change is in the lake once."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.sinks.delta import Mode
from tests.sinks import killed_writer
from tests.sinks.harness import QUIET, DeltaHarness
from tests.sinks.source import batch_of

STEPS = [
    ("upsert", "delta.before_commit"),
    ("upsert", "delta.after_commit:2"),
    ("upsert", "delta.after_evolve:3"),
    ("upsert", "delta.before_commit:4"),
    ("upsert", "delta.after_commit:4"),
    ("upsert", "delta.before_compact"),
    ("upsert", "delta.after_compact"),
    ("history", "delta.after_evolve:3"),
    ("history", "delta.before_commit:4"),
    ("history", "delta.after_commit:4"),
    ("append", "delta.after_evolve:4"),
    ("append", "delta.after_commit:4"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "at"), STEPS)
def test_f081_story_of_a_killed_writer_ends_in_the_same_rows(
    tmp_path: Path, mode: str, at: str
) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", killed_writer.__name__, str(tmp_path / "killed"), mode]
    killed = subprocess.run(command, cwd=root, env={**os.environ, "TAILRACE_FAILPOINT": at})
    assert killed.returncode == 137
    options = replace(QUIET, mode=Mode(mode))
    found, expected = (
        DeltaHarness(str(tmp_path / name), None, options) for name in ("killed", "whole")
    )
    for lake in (found, expected):
        source = killed_writer.tell(lake.sink)
    tables = [lake.table(source.relation).to_pyarrow_table() for lake in (found, expected)]
    rows = [sorted(map(repr, table.to_pylist())) for table in tables]
    assert rows[0] == rows[1]
    last = 5 + killed_writer.SMALL_BATCHES
    assert found.sink.committed("lake", [source.relation]) == {"public.orders": last}
    found.sink.write(batch_of(last, source.take()))
    for lake in (found, expected):
        lake.close()
