"""A sink interrupted at any step, and the whole story told again: every change is there once."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.sinks import Sink
from tailrace.sinks.columns import Mode
from tests.nursery import die
from tests.server import Server
from tests.sinks import killed_writer
from tests.sinks.change_harness import ParquetHarness, PostgresChanges, folded
from tests.sinks.harness import PostgresHarness
from tests.sinks.killed_writer import LAST, tell
from tests.sinks.source import Source, batch_of


def interrupt(tmp_path: Path, step: str, **options: str) -> None:
    """A process tells the story to a sink until the step is reached for the given time."""
    told = json.dumps(options)
    die(killed_writer.tell_to, told, failpoint=step, output=tmp_path / "output.txt")


def assert_done(sink: Sink, source: Source) -> None:
    assert sink.committed("lake", [source.relation]) == {"public.orders": LAST}
    sink.write(batch_of(LAST, source.take()))


STEPS = [
    *("postgres.after_evolve:3", "postgres.after_rows:2", "postgres.after_rows:5"),
    *("postgres.before_commit", "postgres.before_commit:5"),
    *("postgres.after_commit:2", "postgres.after_commit:5"),
]


@pytest.mark.parametrize("step", STEPS)
def test_f081_interrupted_copy_ends_in_the_rows_of_the_source(
    postgres: Server, tmp_path: Path, step: str
) -> None:
    with postgres.database() as fresh:
        interrupt(tmp_path, step, type="postgres", dsn=fresh.dsn)
        with closing(PostgresHarness(fresh)) as copy:
            source = tell(copy.sink)
            assert copy.rows(source.relation) == source.expected()
            assert_done(copy.sink, source)


@pytest.mark.parametrize("step", ["postgres.before_commit:5", "postgres.after_commit:5"])
def test_f081_interrupted_copy_has_every_change_once(
    postgres: Server, tmp_path: Path, step: str
) -> None:
    with postgres.database() as fresh:
        interrupt(tmp_path, step, type="postgres", dsn=fresh.dsn, mode="append")
        with closing(PostgresChanges(fresh, Mode.APPEND)) as copy:
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
        *("parquet.after_file", "parquet.after_file:5", "parquet.after_file:6"),
        *("parquet.before_commit:2", "parquet.before_commit:5"),
        *("parquet.after_commit", "parquet.after_commit:5"),
    ],
)
def test_f081_interrupted_files_hold_every_change_once(tmp_path: Path, step: str) -> None:
    interrupt(tmp_path, step, type="parquet", path=str(tmp_path))
    with closing(ParquetHarness(str(tmp_path))) as files:
        source = tell(files.sink)
        changes = files.changes(source.relation)
        # Files do not go back: what the load was older than is in them before and behind it.
        assert len(changes) == CHANGES + 1
        names = [tuple(str(value) for value in row.values()) for row in source.rows.values()]
        assert folded(changes[-2:], source.relation) == names
        # What was put twice has the same name: there is nothing that the index does not know.
        assert len(files.files(source.relation)) == len(list(tmp_path.rglob("*.parquet")))
        assert_done(files.sink, source)
