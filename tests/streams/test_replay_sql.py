"""A replay as the operator's page says: asked for, watched and cancelled by SQL alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

from tailrace.control.schema import migrate
from tailrace.control.streams import StreamRow, read_streams
from tailrace.postgres.session import Connection, connect
from tailrace.sinks.memory import MemorySink
from tailrace.storage import MemoryStore
from tailrace.streams.replay.by_sql import ReplaysBySql
from tailrace.streams.replay.request import to_time
from tests.server import Database
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of

SOURCE = "tailrace_main"
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
def operator(database: Database) -> Iterator[Operator]:
    log, table, sink = MadeLog(MemoryStore()), Table(), MemorySink()
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
    assert operator.is_clear()
    assert operator.note.startswith("refused: a replay") and "--cancel" in operator.note
    future = datetime.now(UTC) + timedelta(days=1)
    operator.conn.execute(ASK, (future, None, STREAM))
    operator.turn()
    assert "in the future" in operator.note and operator.is_clear()


def test_f081_death_between_the_note_and_the_request_replays_once(operator: Operator) -> None:
    operator.ask(1, 2)
    operator.turn()
    first = operator.flow.replays.current(STREAM)
    operator.flow.store.delete([f"replays/{STREAM}/request.json"])
    operator.turn()
    again = operator.flow.replays.current(STREAM)
    assert first is not None and again is not None and again.id == first.id
    operator.flow.serve()
    # Whoever takes over finds it done.
    ReplaysBySql(operator.flow.store, SOURCE).follow(operator.conn, operator.row)
    assert operator.note.startswith("done: 2 changes")


def test_f105_window_that_is_moved_to_the_future_before_it_was_asked_for_is_refused(
    operator: Operator,
) -> None:
    operator.ask(1, 2)
    operator.turn()
    operator.flow.store.delete([f"replays/{STREAM}/request.json"])
    operator.conn.execute(ASK, (datetime.now(UTC) + timedelta(days=1), None, STREAM))
    operator.turn()
    assert "in the future" in operator.note and operator.is_clear()
