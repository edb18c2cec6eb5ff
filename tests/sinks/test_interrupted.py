"""A sink interrupted at any step, and the whole story told again: every change is there once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tailrace.sinks import Sink
from tailrace.sinks.columns import Mode
from tests.server import Server
from tests.sinks.change_harness import ParquetHarness, PostgresChanges, folded
from tests.sinks.harness import PostgresHarness
from tests.sinks.killed_writer import LAST, tell
from tests.sinks.source import Source, batch_of


class Interrupted(Exception):
    """The process would have died here."""


def interrupt(monkeypatch: pytest.MonkeyPatch, kind: str, step: str, sink: Sink) -> None:
    """Tell the story until the step is reached for the given time."""
    name, _, count = step.partition(":")
    left = iter(range(int(count or 1) - 1))

    def failpoint(reached: str) -> None:
        if reached == f"{kind}.{name}" and next(left, None) is None:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(f"tailrace.sinks.{kind}.sink.failpoint", failpoint)
        with pytest.raises(Interrupted):
            tell(sink)


def assert_done(sink: Sink, source: Source) -> None:
    assert sink.committed("lake", [source.relation]) == {"public.orders": LAST}
    sink.write(batch_of(LAST, source.take()))


STEPS = ["after_evolve:3", "after_rows:2", "after_rows:5", "before_commit", "before_commit:5"]


@pytest.mark.parametrize("step", [*STEPS, "after_commit:2", "after_commit:5"])
def test_f081_interrupted_copy_ends_in_the_rows_of_the_source(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with postgres.database() as fresh, closing(PostgresHarness(fresh)) as copy:
        interrupt(monkeypatch, "postgres", step, copy.open())
        source = tell(copy.sink)
        assert copy.rows(source.relation) == source.expected()
        assert_done(copy.sink, source)


@pytest.mark.parametrize("step", ["before_commit:5", "after_commit:5"])
def test_f081_interrupted_copy_has_every_change_once(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with postgres.database() as fresh, closing(PostgresChanges(fresh, Mode.APPEND)) as copy:
        interrupt(monkeypatch, "postgres", step, copy.open())
        source = tell(copy.sink)
        assert len(copy.changes(source.relation)) == CHANGES
        assert_done(copy.sink, source)


CHANGES = 2 + 2 + 1 + (1 + 2) + 1 + (LAST - 7) + 2
"""Of the story: three batches, a load behind a TRUNCATE, what came since, small batches, and the
last one.
"""


@pytest.mark.parametrize(
    "step",
    [
        *("after_file", "after_file:5", "after_file:6"),
        *("before_commit:2", "before_commit:5", "after_commit", "after_commit:5"),
    ],
)
def test_f081_interrupted_files_hold_every_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with closing(ParquetHarness(str(tmp_path))) as files:
        interrupt(monkeypatch, "parquet", step, files.open())
        source = tell(files.sink)
        changes = files.changes(source.relation)
        # Files do not go back: what the load was older than is in them before and behind it.
        assert len(changes) == CHANGES + 1
        names = [tuple(str(value) for value in row.values()) for row in source.rows.values()]
        assert folded(changes[-2:], source.relation) == names
        # What was put twice has the same name: there is nothing that the index does not know.
        assert len(files.files(source.relation)) == len(list(tmp_path.rglob("*.parquet")))
        assert_done(files.sink, source)
