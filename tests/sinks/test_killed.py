"""A writer killed at any step, and started again: every change is in the lake once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tailrace.sinks.delta import Mode
from tests.nursery import die
from tests.sinks import killed_writer
from tests.sinks.change_harness import place
from tests.sinks.harness import QUIET, DeltaHarness
from tests.sinks.source import Source, batch_of

STEPS = [
    ("upsert", "delta.before_commit"),
    ("upsert", "delta.after_commit:2"),
    ("upsert", "delta.after_evolve:3"),
    ("upsert", "delta.before_commit:5"),
    ("upsert", "delta.after_commit:5"),
    ("upsert", "delta.before_compact"),
    ("upsert", "delta.after_compact"),
    ("history", "delta.after_evolve:3"),
    ("history", "delta.before_commit:5"),
    ("history", "delta.after_commit:5"),
    ("append", "delta.after_evolve:5"),
    ("append", "delta.after_commit:5"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "at"), STEPS)
def test_f081_story_of_a_killed_writer_ends_in_the_same_rows(
    tmp_path: Path, mode: str, at: str
) -> None:
    lake, output = str(tmp_path / "killed"), tmp_path / "output.txt"
    die(killed_writer.main, lake, mode, failpoint=at, output=output)
    with closing(DeltaHarness(lake, None, replace(QUIET, mode=Mode(mode)))) as found:
        source = killed_writer.tell(found.sink)
        assert _rows(found, source) == _rows_of_a_whole_story(mode)
        if mode == "append":
            places = [
                place(row) for row in found.table(source.relation).to_pyarrow_table().to_pylist()
            ]
            assert len(places) == len(set(places))
        last = killed_writer.LAST
        assert found.sink.committed("lake", [source.relation]) == {"public.orders": last}
        found.sink.write(batch_of(last, source.take()))


@cache
def _rows_of_a_whole_story(mode: str) -> list[str]:
    with (
        TemporaryDirectory() as directory,
        closing(DeltaHarness(directory, None, replace(QUIET, mode=Mode(mode)))) as lake,
    ):
        return _rows(lake, killed_writer.tell(lake.sink))


def _rows(lake: DeltaHarness, source: Source) -> list[str]:
    return sorted(map(repr, lake.table(source.relation).to_pyarrow_table().to_pylist()))
