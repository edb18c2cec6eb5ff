"""`tailrace dlq`: what an operator sees and asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.cli import dlq
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.postgres import PostgresOptions, PostgresSink
from tailrace.sinks.queue import QueueSink
from tailrace.sinks.queue.outbox import Outbox
from tailrace.storage import FileStore
from tests.cli.project import Project
from tests.server import Database
from tests.sinks.queue.servers import STREAM, WebhookQueue, open_queue, webhook
from tests.sinks.source import Source, batch_of


@pytest.fixture
def receiver() -> Iterator[WebhookQueue]:
    with webhook() as queue:
        yield queue


@pytest.fixture
def sink(project: Project, receiver: WebhookQueue) -> Iterator[QueueSink]:
    """Two keys, of which one is refused, in the log of the project."""
    (project.directory / "tailrace.yaml").write_text("log: {url: 'file:log'}\n")
    source = Source()
    for key in (1, 2):
        source.insert(id=key, n=0)
        source.update(key, n=1)
    receiver.faults.fail(2, Kind.POISON)
    sink = open_queue(receiver, FileStore(Path(project.directory, "log")))
    sink.write(batch_of(1, source.take(), stream=STREAM))
    yield sink
    sink.close()


def test_letters_are_listed_by_row_and_shown_whole(project: Project, sink: QueueSink) -> None:
    line = json.loads(project.run("dlq", "ls", "--json").out)
    assert (line["stream"], line["table"], line["key"]) == (STREAM, "public.orders", '{"id":2}')
    assert (line["letters"], line["kind"], line["sink"]) == (2, "poison", "webhook")
    listed = project.run("dlq", "ls", STREAM).out
    assert line["event_id"] in listed and "+1 behind" in listed and "HTTP 422" in listed
    shown = project.run("dlq", "show", STREAM, line["event_id"]).json
    assert shown["payload"]["after"]["id"] == 2
    assert (shown["offset"], shown["attempt_count"]) == (line["offset"], line["attempts"])
    assert "copies wait" not in listed
    store = FileStore(Path(project.directory, "log"))
    letters = DeadLetters(store, STREAM)
    Outbox(store, STREAM).put(letters.read(letters.names()[0]))
    assert f"{STREAM}  1 copies wait for the dead letter queue\n" in project.run("dlq", "ls").out
    code, error, hint = project.run("dlq", "show", STREAM, "0000-7").failure
    assert code == 2 and "0000-7" in error and "dlq ls" in hint


def test_letter_that_goes_while_one_looks_is_left_out(
    project: Project, sink: QueueSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "WAIT_S", 0.0)
    sink.close()
    store = FileStore(Path(project.directory, "log"))
    letters = DeadLetters(store, STREAM)
    gone, left = names = letters.names()
    events = [letters.read(name).event_id for name in names]
    store.delete([gone.key])
    # As if it went behind the listing.
    monkeypatch.setattr(DeadLetters, "names", lambda _: names)
    line = json.loads(project.run("dlq", "ls", "--json").out)
    assert (line["event_id"], line["letters"]) == (events[1], 1)
    assert project.run("dlq", "show", STREAM, events[1]).json["place"] == left.place
    code, error, _ = project.run("dlq", "redrive", STREAM, events[0]).failure
    assert code == 2 and "has no dead letter" in error
    assert "when it runs" in project.run("dlq", "redrive", STREAM, events[1]).out


def test_redrive_is_carried_out_by_the_pipeline(
    project: Project, sink: QueueSink, receiver: WebhookQueue
) -> None:
    receiver.faults.clear()
    ended = project.run("dlq", "redrive", STREAM)
    assert (ended.code, ended.out) == (0, "redrive: 2 done, 0 left\n")
    assert project.run("dlq", "ls", "--json").out == ""
    assert len(receiver.received()) == 4
    assert project.run("dlq", "redrive", STREAM).out == f"stream {STREAM} has no dead letters\n"


def test_row_that_a_target_database_refuses_is_listed_shown_and_redriven(
    project: Project, database: Database
) -> None:
    (project.directory / "tailrace.yaml").write_text("log: {url: 'file:log'}\n")
    source = Source()
    options = PostgresOptions(database.dsn)
    store = FileStore(Path(project.directory, "log"))
    with closing(PostgresSink(options, store=store, stream=STREAM)) as sink:
        sink.prepare(source.relation)
        with database.connect() as conn:
            conn.execute("ALTER TABLE orders ADD CONSTRAINT small CHECK (n < 1000)")
        source.insert(id=1, n=1)
        source.insert(id=2, n=2000)
        sink.write(batch_of(1, source.take(), stream=STREAM))
        line = json.loads(project.run("dlq", "ls", "--json").out)
        assert (line["table"], line["key"]) == ("public.orders", '{"id":"2"}')
        assert (line["kind"], line["sink"]) == ("poison", "postgres")
        assert "check constraint" in project.run("dlq", "ls", STREAM).out
        shown = project.run("dlq", "show", STREAM, line["event_id"]).json
        assert shown["payload"]["op"] == "upsert" and shown["payload"]["row"]["n"] == "2000"
        ended = project.run("dlq", "redrive", STREAM)
        assert ended.code == 1 and f"\n  {line['event_id']}  " in ended.out
        with database.connect() as conn:
            conn.execute("ALTER TABLE orders DROP CONSTRAINT small")
        ended = project.run("dlq", "redrive", STREAM, line["event_id"])
        assert (ended.code, ended.out) == (0, "redrive: 1 done, 0 left\n")
    with database.connect() as conn:
        assert conn.execute("SELECT id, n FROM orders ORDER BY 1").fetchall() == [(1, 1), (2, 2000)]


def test_discard_needs_a_yes(project: Project, sink: QueueSink, receiver: WebhookQueue) -> None:
    event = json.loads(project.run("dlq", "ls", "--json").out)["event_id"]
    code, error, hint = project.run("dlq", "discard", STREAM, event).failure
    assert code == 2 and "nothing was discarded" in error and "--yes" in hint
    assert project.run("dlq", "discard", STREAM, "--yes").failure[0] == 2
    ended = project.run("dlq", "discard", STREAM, event, "--yes")
    assert (ended.code, ended.out) == (0, "discard: 1 done, 0 left\n")
    assert json.loads(project.run("dlq", "ls", "--json").out)["letters"] == 1
    assert list(Path(project.directory, "log").rglob("audit/*.json"))
    assert len(receiver.received()) == 2


def test_without_a_pipeline_the_request_waits(
    project: Project, sink: QueueSink, receiver: WebhookQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "WAIT_S", 0.0)
    sink.close()
    ended = project.run("dlq", "redrive", STREAM)
    assert ended.code == 1 and "when it runs" in ended.out
    receiver.faults.clear()
    again = open_queue(receiver, FileStore(Path(project.directory, "log")))
    again.serve_requests()
    again.close()
    assert len(receiver.received()) == 4


@pytest.mark.parametrize("action", ["ls", "redrive"])
def test_stream_that_nobody_knows_is_an_error(
    project: Project, sink: QueueSink, action: str
) -> None:
    code, error, hint = project.run("dlq", action, "ordres").failure
    assert code == 2 and "no stream ordres" in error and STREAM in hint
