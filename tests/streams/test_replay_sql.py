"""A replay as the operator's page says: asked for, watched and cancelled by SQL alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from psycopg.types.json import Jsonb

from tailrace.cli.replay_bar import facts
from tailrace.control.schema import migrate
from tailrace.control.streams import StreamRow, read_streams, reporting
from tailrace.errors import SinkError
from tailrace.log import layout
from tailrace.log.epochs import take_epoch
from tailrace.postgres.session import Connection, connect
from tailrace.sinks.memory import MemorySink
from tailrace.streams.replay import by_sql
from tailrace.streams.replay.by_sql import ReplaysBySql
from tailrace.streams.replay.keys import Keys
from tailrace.streams.replay.request import to_time
from tests.nursery import die
from tests.server import Database
from tests.spark.made_log import MadeLog, Table
from tests.streams import killed_replay
from tests.streams.killed_replay import SOURCE
from tests.streams.replaying import STREAM, Replayed, time_of

ASK = "UPDATE tailrace.streams SET replay_from_ts = %s, replay_to_ts = %s WHERE name = %s"


class Operator:
    """Writes and reads `tailrace.streams`; a pipeline follows it."""

    def __init__(self, conn: Connection, flow: Replayed) -> None:
        self.conn = conn
        self.flow = flow
        self.pipeline = ReplaysBySql(flow.store, SOURCE)

    def ask(self, first: int | None, last: int | None) -> None:
        window = [None if each is None else to_time(time_of(each)) for each in (first, last)]
        self.conn.execute(ASK, (*window, STREAM))

    @property
    def row(self) -> StreamRow:
        (row,) = read_streams(self.conn, SOURCE)
        return row

    @property
    def note(self) -> str:
        return str(self.row.state["replay_note"])

    def turn(self) -> None:
        """What the pipeline does once a second, and for each word."""
        self.pipeline.follow(self.conn, self.row)

    def is_clear(self) -> bool:
        return self.row.replay_from_ts is None and self.row.replay_to_ts is None


@pytest.fixture
def operator(database: Database, log: MadeLog) -> Iterator[Operator]:
    table, sink = Table(), MemorySink()
    for key in range(1, 5):
        log.insert(table, key)
    flow = Replayed(log.store, lambda _: sink)
    flow.go_on()
    with connect(database.dsn) as conn:
        migrate(conn)
        query = "INSERT INTO tailrace.streams (source, name, sink) VALUES (%s, %s, %s)"
        conn.execute(query, (SOURCE, STREAM, Jsonb({"type": "memory"})))
        yield Operator(conn, flow)


def test_window_is_taken_up_watched_and_cleared(operator: Operator) -> None:
    operator.pipeline.tell_available(operator.conn, 0.0)
    shown = operator.row.state
    assert shown["available_from_ts"] == to_time(time_of(1))
    assert shown["available_to_ts"] == to_time(time_of(4))
    operator.ask(2, 3)
    operator.turn()
    assert operator.note.startswith("asked as ")
    request = operator.flow.replays.current(STREAM)
    assert request is not None and (request.since, request.until) == (time_of(2), time_of(3))
    operator.turn()
    assert operator.row.state["replay_progress"] == 0.0
    operator.flow.serve()
    operator.turn()
    assert operator.is_clear() and operator.note.startswith("done: 2 changes of 2000-01-01")
    # The same window once more is another replay; without an end it is up to now.
    operator.ask(2, None)
    operator.turn()
    assert operator.row.replay_to_ts is not None
    operator.flow.serve()
    operator.turn()
    assert operator.note.startswith("done: 3 changes")
    operator.turn()
    assert operator.flow.replays.current(STREAM) is None


class SlowClock(datetime):
    """Of a pipeline's host, an hour behind."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> SlowClock:
        return super().now(tz) - timedelta(hours=1)


def test_f094_now_is_told_by_the_clock_of_the_database_that_commits(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_sql, "datetime", SlowClock)
    (asked,) = operator.conn.execute("SELECT now() - interval '1 minute'").fetchone() or ()
    operator.conn.execute(ASK, (asked, None, STREAM))
    operator.turn()
    until = operator.row.replay_to_ts
    assert isinstance(until, datetime) and until > asked, operator.note


def test_f105_failure_that_is_tried_again_is_told_until_the_replay_gets_on(
    operator: Operator,
) -> None:
    flow, told = operator.flow, []
    flow.changes_max = 1

    def fail_once() -> None:
        operator.turn()
        progress = flow.replays.progress(STREAM)
        assert progress is not None
        told.append(("the sink is away (wait for it)" in operator.note, facts(progress)))
        if len(told) == 1:
            raise SinkError("the sink is away", hint="wait for it", retry=True)

    flow.before_batch = fail_once
    operator.ask(1, 2)
    operator.turn()
    assert flow.serve().state == "done"
    assert told == [
        (False, "0 changes"),
        (True, "0 changes, tried again: the sink is away (wait for it)"),
        (False, "1 changes"),
    ]
    assert not flow.store.list(f"{layout.replay_prefix(STREAM)}trouble/")


def test_f105_trouble_is_told_whatever_the_sink_has_answered(operator: Operator) -> None:
    operator.ask(1, 2)
    operator.turn()
    replays = operator.flow.replays
    request = replays.current(STREAM)
    assert request is not None
    replays.tell_trouble(request, "answered a\udcff")
    progress = replays.progress(STREAM)
    assert progress is not None and progress.trouble == "answered a?"


def test_window_that_is_cleared_is_cancelled(operator: Operator) -> None:
    operator.ask(1, 4)
    operator.turn()
    operator.ask(None, None)
    operator.turn()
    operator.flow.serve()
    operator.turn()
    assert operator.note.startswith("cancelled") and operator.is_clear()


def test_f105_window_that_is_changed_while_it_runs_is_put_back(operator: Operator) -> None:
    operator.ask(1, 2)
    operator.turn()
    operator.ask(3, 4)
    operator.turn()
    assert operator.row.replay_from_ts == to_time(time_of(1))
    assert "another window was refused" in operator.note
    operator.flow.serve()
    operator.turn()
    assert operator.is_clear() and operator.note.startswith("done: 2 changes")


def test_f105_window_that_is_asked_for_when_one_is_just_over_is_the_next(
    operator: Operator,
) -> None:
    operator.ask(1, 2)
    operator.turn()
    operator.flow.serve()
    operator.ask(3, None)
    operator.turn()
    assert operator.row.replay_from_ts == to_time(time_of(3))
    assert operator.note.startswith("done: 2 changes")
    operator.turn()
    operator.flow.serve()
    operator.turn()
    assert operator.is_clear() and operator.note.startswith(
        "done: 2 changes of 2000-01-01 00:11:43"
    )


def test_f105_request_beside_one_of_the_command_is_refused(operator: Operator) -> None:
    operator.flow.ask(time_of(1))
    operator.ask(3, 4)
    operator.turn()
    assert operator.note.startswith("asked as ")
    operator.turn()
    assert operator.is_clear()
    assert operator.note.startswith("refused: a replay") and "--cancel" in operator.note
    future = datetime.now(UTC) + timedelta(days=1)
    operator.conn.execute(ASK, (future, None, STREAM))
    operator.turn()
    assert "in the future" in operator.note and operator.is_clear()


def test_f105_late_pipeline_takes_up_no_window_that_another_one_has(operator: Operator) -> None:
    operator.ask(1, 2)
    late = operator.row
    operator.turn()
    taken = operator.note
    operator.pipeline.follow(operator.conn, late)
    assert operator.note == taken and not operator.is_clear()
    operator.flow.serve()
    # By now there would be room for another request.
    operator.pipeline.follow(operator.conn, late)
    assert operator.flow.replays.current(STREAM) is None
    operator.turn()
    assert operator.is_clear() and operator.note.startswith("done: 2 changes")


@pytest.mark.parametrize(
    "step", ["replay.after_note", "replay.after_ask", "replay.before_told", "replay.after_told"]
)
def test_f081_process_killed_at_any_step_of_a_wish_is_followed_by_one_that_replays_it_once(
    operator: Operator, database: Database, tmp_path: Path, step: str
) -> None:
    flow = operator.flow
    operator.ask(1, 2)
    if step.endswith("_told"):
        operator.turn()
        flow.serve()
    told = (flow.store.url, database.dsn)
    die(killed_replay.follow, *told, failpoint=step, output=tmp_path / "output.txt")
    # Whoever takes over finds it as it was left: taken up, asked for, done or told.
    for _ in range(3):
        operator.turn()
        if flow.replays.current(STREAM) is not None:
            flow.serve()
    assert operator.is_clear() and operator.note.startswith("done: 2 changes")
    assert len(flow.store.list(f"replays/{STREAM}/done/")) == 1


def test_f105_window_that_is_moved_to_the_future_before_it_was_asked_for_is_refused(
    operator: Operator,
) -> None:
    operator.ask(1, 2)
    operator.turn()
    operator.flow.store.delete([Keys(STREAM).request(1)])
    operator.conn.execute(ASK, (datetime.now(UTC) + timedelta(days=1), None, STREAM))
    operator.turn()
    assert "in the future" in operator.note and operator.is_clear()


def test_f105_replay_of_a_paused_or_stopped_stream_says_that_it_waits(operator: Operator) -> None:
    operator.conn.execute("UPDATE tailrace.streams SET paused = true")
    operator.ask(1, 2)
    operator.turn()
    assert operator.note.startswith("asked as ")
    assert operator.note.endswith("; waits until the stream is resumed")
    # It keeps its id, and is carried out once.
    operator.turn()
    operator.conn.execute("UPDATE tailrace.streams SET paused = false")
    operator.turn()
    assert operator.note.endswith("waits until the stream is delivered again: it has stopped")
    with reporting(operator.conn):
        operator.conn.execute("UPDATE tailrace.streams SET status = 'healthy', reason = NULL")
    operator.turn()
    assert "waits" not in operator.note
    operator.flow.serve()
    operator.turn()
    assert operator.is_clear() and operator.note.startswith("done: 2 changes")


def test_replay_of_a_paused_stream_can_be_cancelled(operator: Operator) -> None:
    operator.conn.execute("UPDATE tailrace.streams SET paused = true")
    operator.ask(1, 2)
    operator.turn()
    operator.ask(None, None)
    operator.turn()
    assert operator.note.endswith("; cancelled; waits until the stream is resumed")
    operator.flow.serve()
    operator.turn()
    assert operator.is_clear() and operator.note.startswith("cancelled: 0 changes")


def test_f105_window_of_one_moment_has_what_was_committed_then(operator: Operator) -> None:
    operator.ask(2, 2)
    operator.turn()
    operator.flow.serve()
    operator.turn()
    assert operator.note.startswith("done: 1 changes") and operator.is_clear()


def test_request_that_cannot_be_read_ends_alone_and_is_asked_for_again(operator: Operator) -> None:
    operator.ask(2, 3)
    operator.turn()
    key = Keys(STREAM).request(1)
    operator.flow.store.delete([key])
    operator.flow.store.put_new(key, b'{"id": 3}')
    zombie = take_epoch(operator.flow.store, STREAM, node="stopped")
    fence = take_epoch(operator.flow.store, STREAM, node="this")
    operator.flow.lookout().step(0.0, zombie)
    assert operator.flow.replays.last(STREAM) is None, "it is for another to say"
    operator.flow.lookout().step(0.0, fence)
    last = operator.flow.replays.last(STREAM)
    assert last is not None and (last.state, last.change_count) == ("failed", 0)
    assert "cannot be read" in last.note
    # The row still asks for it, under the id that it was given.
    operator.flow.fence = fence
    operator.turn()
    assert operator.flow.serve().state == "done"
    operator.turn()
    assert operator.is_clear() and operator.note.startswith("done: 2 changes")
