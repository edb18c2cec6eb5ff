"""A process dies at every step of a replay, and live batches come between: the next one goes on
where it was.

The killed are processes of their own: whatever is durable then is what a new run finds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tailrace.log.wanted import SLOT_LOST, WantedBase, want_base
from tailrace.sinks.memory import MemorySink
from tailrace.storage import FileStore
from tests.nursery import die
from tests.server import Database
from tests.spark.made_log import MadeLog, Table
from tests.streams import killed_replay
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


class Target(Protocol):
    """Where the stream keeps rows, or changes."""

    kind: str

    def options(self, mode: str) -> dict[str, object]:
        """Of the sink."""
        ...

    def lose(self, key: int) -> None:
        """Somebody deletes a row."""
        ...

    def rows(self) -> list[tuple[object, ...]]:
        """All that there are, by key."""
        ...

    def offsets(self, origin: str) -> list[tuple[int, int]]:
        """The changes of one origin, in order."""
        ...


@dataclass
class Lake:
    """A table of Delta."""

    path: Path
    kind: str = "delta"

    def options(self, mode: str) -> dict[str, object]:
        return {"type": "delta", "path": str(self.path), "mode": mode, "engine": "deltalake"}

    def lose(self, key: int) -> None:
        lose(self.path, f"id = {key}")

    def rows(self) -> list[tuple[object, ...]]:
        return lake_rows(self.path)

    def offsets(self, origin: str) -> list[tuple[int, int]]:
        return offsets(self.path, origin)


@dataclass
class Copy:
    """A table of another Postgres."""

    database: Database
    kind: str = "postgres"

    def options(self, mode: str) -> dict[str, object]:
        return {"type": "postgres", "dsn": self.database.dsn, "mode": mode}

    def lose(self, key: int) -> None:
        with self.database.connect() as connection:
            connection.execute("DELETE FROM orders WHERE id = %s", [key])

    def rows(self) -> list[tuple[object, ...]]:
        with self.database.connect() as connection:
            found = connection.execute("SELECT * FROM orders").fetchall()
        return sorted(found, key=lambda row: repr(row[0]))

    def offsets(self, origin: str) -> list[tuple[int, int]]:
        query = "SELECT _commit_lsn, _ordinal FROM orders WHERE _origin = %s ORDER BY 1, 2"
        with self.database.connect() as connection:
            return [(int(lsn), int(number)) for lsn, number in connection.execute(query, [origin])]


@pytest.fixture(params=["delta", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Each of them."""
    if request.param == "delta":
        return Lake(tmp_path / "lake")
    return Copy(request.getfixturevalue("database"))


def serve_killed(flow: Replayed, options: dict[str, object], step: str, output: Path) -> None:
    """A process that ends at the step."""
    told = (flow.store.url, json.dumps(options))
    die(killed_replay.serve, *told, failpoint=step, output=output)


def history(log: MadeLog) -> Table:
    """Four transactions of six changes; the last one outdoes some of what is before."""
    table = Table()
    log.insert(table, 1, 4)
    log.commit(table, table.update(1, 1, "b", None), table.delete(2))
    log.commit(table, table.insert(2, "c", None), table.update(3, 30, "c", None))
    log.commit(table, table.update(1, 1, "d", None))
    return table


@pytest.mark.parametrize("step", [*STEPS, "replay.after_fix", "replay.after_write"])
def test_f030_f081_replay_of_rows_killed_at_any_step_goes_on(
    log: MadeLog, target: Target, tmp_path: Path, step: str
) -> None:
    table, options = history(log), target.options("upsert")
    flow = killed_replay.flow_to(log.store, options)
    flow.go_on()
    target.lose(4)
    flow.ask(time_of(1), time_of(3))
    serve_killed(flow, options, step, tmp_path / "output.txt")
    # The stream has gone on since.
    log.commit(table, table.update(4, 4, "later", None))
    flow.go_on()
    if flow.replays.current(STREAM) is not None:
        assert flow.serve().change_count == 8
    last = flow.replays.last(STREAM)
    assert last is not None and (last.state, last.change_count) == ("done", 8)
    assert target.rows() == table.rows


@pytest.mark.parametrize("step", [*BATCH, "before_commit:2", "after_commit:2"])
def test_f030_f081_replay_of_changes_killed_at_any_step_adds_each_once(
    log: MadeLog, target: Target, tmp_path: Path, step: str
) -> None:
    history(log)
    options = target.options("append")
    flow = killed_replay.flow_to(log.store, options)
    flow.go_on()
    once = target.offsets("wal")
    flow.ask(time_of(1))
    point = step if "." in step else f"{target.kind}.{step}"
    serve_killed(flow, options, point, tmp_path / "output.txt")
    assert flow.serve().change_count == 9
    assert target.offsets("replay") == once == target.offsets("wal")


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


def test_f032_replay_while_a_lost_slot_is_mended_is_outdone_by_the_new_base(tmp_path: Path) -> None:
    log = MadeLog(FileStore(tmp_path / "log"))
    table, sink = history(log), MemorySink()
    flow = Replayed(log.store, lambda _: sink, changes_max=2)
    flow.go_on()
    delivered = rows_of(sink)
    oid = table.relation.oid
    want_base(log.store, WantedBase(oid, log.end.commit_lsn, SLOT_LOST))
    # While the table waits for its base: what the log has is delivered once more.
    flow.ask(time_of(1))
    assert flow.serve().state == "done" and rows_of(sink) == delivered
    # The base comes while one is under way: rows that were changed while there was no slot.
    flow.ask(time_of(1))
    rounds = iter(range(100))

    def mended() -> None:
        if next(rounds) == 1:
            table.by_key = {1: (1, "not streamed", None), 99: (99, "not streamed", None)}
            log.base_of(table)
            flow.go_on()

    flow.before_batch = mended
    outcome = flow.serve()
    assert (outcome.state, outcome.change_count) == ("done", 9) and next(rounds) > 2
    assert rows_of(sink) == table.rows


def test_f032_changes_are_added_again_across_a_new_base(tmp_path: Path) -> None:
    log = MadeLog(FileStore(tmp_path / "log"))
    table, path = history(log), tmp_path / "lake"
    flow = Replayed(log.store, lake(path, "append"), changes_max=2)
    flow.go_on()
    once = offsets(path, "wal")
    flow.ask(time_of(1))
    rounds = iter(range(100))

    def mended() -> None:
        if next(rounds) == 1:
            log.base_of(table)
            flow.go_on()

    flow.before_batch = mended
    assert flow.serve().state == "done"
    assert offsets(path, "replay") == once
