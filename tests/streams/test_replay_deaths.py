"""A process dies at every step of a replay, and live batches come between: the next one goes on
where it was.

A kill is an exception that nobody catches: whatever is durable then is what a new run finds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.sinks.memory import MemorySink
from tailrace.storage import FileStore
from tests.dying import dies_at
from tests.spark.made_log import MadeLog, Table
from tests.streams.by_hand import rows_of
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.running import lake_rows
from tests.streams.test_replay import lake, lose, offsets

BEGIN = ["replay.before_begin", "replay.after_begin"]
BATCH = [
    "batch.before_fix:2",
    "replay.before_batch:2",
    "replay.after_batch:2",
    "batch.after_write:2",
    "batch.after_finish:2",
]
CLEAR = ["replay.before_clear", "replay.after_outcome", "replay.after_clear"]
STEPS = [*BEGIN, *BATCH, *CLEAR]


def serve_killed(flow: Replayed, step: str, patch: pytest.MonkeyPatch) -> None:
    """A process that ends at the step."""
    with dies_at(step, patch):
        flow.serve()


def history(log: MadeLog) -> Table:
    """Four transactions of six changes; the last one outdoes some of what is before."""
    table = Table()
    log.insert(table, 1, 4)
    log.commit(table, table.update(1, 1, "b", None), table.delete(2))
    log.commit(table, table.insert(2, "c", None), table.update(3, 30, "c", None))
    log.commit(table, table.update(1, 1, "d", None))
    return table


@pytest.mark.parametrize(
    "step",
    [*STEPS, "replay.after_fix", "replay.after_write"],
)
def test_f030_f081_replay_of_rows_killed_at_any_step_goes_on(
    log: MadeLog, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = history(log), tmp_path / "lake"
    flow = Replayed(log.store, lake(path), changes_max=2)
    flow.go_on()
    lose(path, "id = 4")
    flow.ask(time_of(1), time_of(3))
    serve_killed(flow, step, monkeypatch)
    # The stream has gone on since.
    log.commit(table, table.update(4, 4, "later", None))
    flow.go_on()
    if flow.replays.current(STREAM) is not None:
        assert flow.serve().change_count == 8
    last = flow.replays.last(STREAM)
    assert last is not None and (last.state, last.change_count) == ("done", 8)
    assert lake_rows(path) == table.rows


@pytest.mark.parametrize("step", [*BATCH, "delta.before_commit:2", "delta.after_commit:2"])
def test_f030_f081_replay_of_changes_killed_at_any_step_adds_each_once(
    log: MadeLog, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(log)
    path = tmp_path / "lake"
    flow = Replayed(log.store, lake(path, "append"), changes_max=2)
    flow.go_on()
    once = offsets(path, "wal")
    flow.ask(time_of(1))
    serve_killed(flow, step, monkeypatch)
    assert flow.serve().change_count == 9
    assert offsets(path, "replay") == once == offsets(path, "wal")


def test_f032_f105_live_batches_between_those_of_a_replay_win(tmp_path: Path) -> None:
    log = MadeLog(FileStore(tmp_path / "log"))
    table, sink = history(log), MemorySink()
    flow = Replayed(log.store, lambda _: sink, changes_max=2)
    flow.go_on()
    flow.ask(time_of(1), time_of(3))
    rounds = iter(range(100))

    def live() -> None:
        log.commit(table, table.update(1, 1, f"round {next(rounds)}", None))
        flow.go_on()

    flow.before_batch = live
    assert flow.serve().state == "done"
    assert next(rounds) > 3
    assert rows_of(sink) == table.rows
    notes = [
        row["note"]
        for batch in sink.batches
        for changes in batch.tables
        for row in changes.rows.to_pylist()
        if row["id"] == 1
    ]
    first_round = notes.index("round 0")
    assert {note[:5] for note in notes[first_round:]} == {"round"}
