"""Dead letters are copied to a queue of their own; the store beside the log stays the truth."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.errors import LogFenced, SinkError
from tailrace.log.epochs import take_epoch
from tailrace.sinks import Batch
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.letter import Letter, LetterLimits
from tailrace.sinks.letters.redrive import Request, Requests
from tailrace.sinks.queue.copier import Copier
from tailrace.sinks.queue.limits import WindowLimits
from tailrace.sinks.queue.outbox import Outbox
from tailrace.storage import FileStore, MemoryStore, Store
from tests.capture.running import wait_until
from tests.dying import met_at
from tests.nursery import die
from tests.sinks.queue.servers import STREAM, Queue, WebhookQueue, open_queue, webhook
from tests.sinks.source import Source, batch_of
from tests.streams import killed_queue
from tests.streams.test_queue import history

BAD = 2


class KeepingStore(MemoryStore):
    """Deletes no copies while `keeps`, as if the process had died before."""

    keeps = False

    def delete(self, keys: Iterable[str]) -> None:
        super().delete(key for key in keys if not (self.keeps and "/copies/" in key))


@pytest.fixture(params=["receiver", "moto"])
def dead(request: pytest.FixtureRequest) -> Queue:
    """The dead letter queue."""
    found: Queue = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def queue() -> Iterator[WebhookQueue]:
    """The queue of the stream, which refuses one row."""
    with webhook() as made:
        made.faults.fail(BAD, Kind.POISON)
        yield made


def batches() -> list[Batch]:
    """Three rows, each changed in each of three batches."""
    source, made = Source(), []
    for key in range(3):
        source.insert(id=key, n=0)
    for number in (1, 2, 3):
        for key in range(3):
            source.update(key, n=number)
        made.append(batch_of(number, source.take(), stream=STREAM))
    return made


def letters(store: Store) -> list[Letter]:
    kept = DeadLetters(store, STREAM)
    return [kept.read(name) for name in kept.names()]


def copies(dead: Queue) -> list[str]:
    return [message["event_id"] for message in dead.received()]


def deliver(queue: Queue, dead: Queue, store: MemoryStore, made: Iterable[Batch]) -> None:
    """In a run of its own, which ends when the dead letter queue has everything."""
    sink = open_queue(queue, store, dead=dead)
    try:
        for batch in made:
            sink.write(batch)
        wait_until(lambda: not len(Outbox(store, STREAM)))
    finally:
        sink.close()


def test_f099_each_dead_letter_is_copied_with_all_that_is_known_of_it_in_order(
    queue: WebhookQueue, dead: Queue
) -> None:
    store = MemoryStore()
    deliver(queue, dead, store, batches())
    found, kept = dead.received(), letters(store)
    assert [copy["event_id"] for copy in found] == [letter.event_id for letter in kept]
    assert len(kept) == 4, "the first, and those behind it"
    first, behind = found[0], found[1]
    assert (first["stream"], first["table"], first["key"]) == (STREAM, "public.orders", '{"id":2}')
    assert (first["sink"], first["kind"], first["attempt_count"]) == ("webhook", "poison", 2)
    assert (first["offset"], "HTTP 422" in first["error"]) == (kept[0].offset, True)
    assert first["payload"]["after"]["n"] == 0
    assert first["payload_bytes"] == len(kept[0].payload)
    assert behind["error"] == "", "it only waits"


def test_f099_dead_letter_queue_that_is_down_holds_up_nothing_and_gets_every_copy_later(
    queue: WebhookQueue, receiver: WebhookQueue, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    receiver.faults.is_down = True
    sink = open_queue(queue, store, dead=receiver)
    for batch in batches():
        sink.write(batch)
    wait_until(lambda: "copies of dead letters wait" in caplog.text)
    assert len(queue.received()) == 8, "the other rows flow"
    assert len(letters(store)) == 4 and not receiver.received()
    queue.faults.clear()
    Requests(store, STREAM).ask(Request("1", "redrive", (), "an operator"))
    sink.serve_requests()
    assert not letters(store)
    receiver.faults.clear()
    wait_until(lambda: not len(Outbox(store, STREAM)))
    sink.close()
    assert len(copies(receiver)) == 4, "also of letters that are gone"


def test_copy_that_is_sent_again_has_the_same_event_id(
    queue: WebhookQueue, receiver: WebhookQueue
) -> None:
    store, made = KeepingStore(), batches()
    store.keeps = True
    sink = open_queue(queue, store, dead=receiver)
    sink.write(made[0])
    wait_until(lambda: len(set(copies(receiver))) == 2)
    sink.close()
    store.keeps = False
    deliver(queue, receiver, store, made)
    found = copies(receiver)
    assert len(found) > 4 and set(found) == {letter.event_id for letter in letters(store)}
    assert found[0] == found[2], "the first run's again, then the rest"


@pytest.mark.parametrize(
    "step", ["letter.after_put", "copy.before_put", "copy.after_put:2", "copy.before_delete"]
)
def test_f099_process_killed_between_a_letter_and_its_copy_leaves_none_without_one(
    queue: WebhookQueue, receiver: WebhookQueue, step: str, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "log")
    history(store)
    told = killed_queue.told(queue, store, receiver)
    die(killed_queue.main, *told, failpoint=step, output=tmp_path / "output.txt")
    killed_queue.deliver(queue, store, receiver)
    kept, found = letters(store), copies(receiver)
    assert kept[0].error, "the second run knows why, though it only found the key parked"
    assert sorted(set(found)) == sorted(letter.event_id for letter in kept)
    assert receiver.received()[0]["error"] == kept[0].error
    if step == "copy.before_delete":
        assert len(found) > len(set(found)), "what was told and not deleted is told again"


def test_f082_zombie_tells_of_no_letter_that_its_successor_does_not_know(
    queue: WebhookQueue, receiver: WebhookQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = MemoryStore(), batches()
    take_epoch(store, STREAM, node="a")

    def take_over(_: int) -> None:
        queue.faults.clear()
        take_epoch(store, STREAM, node="b")
        deliver(queue, receiver, store, made)

    fenced = pytest.raises(LogFenced)
    with met_at("letter.before_put", take_over, monkeypatch), fenced:
        deliver(queue, receiver, store, made)
    assert not letters(store) and not Outbox(store, STREAM)
    assert not receiver.received()


def test_copy_that_is_too_large_goes_without_its_payload(queue: WebhookQueue) -> None:
    with webhook() as small:
        small.batch_bytes = 500
        deliver(queue, small, MemoryStore(), batches())
        found = small.received()
    assert [copy["payload"] for copy in found] == [None] * 4
    assert found[0]["payload_bytes"] > 300 and "HTTP 422" in found[0]["error"]


def test_f099_too_many_copies_that_wait_stop_the_stream_until_they_are_sent(
    queue: WebhookQueue, receiver: WebhookQueue
) -> None:
    store, made = MemoryStore(), batches()
    receiver.faults.is_down = True
    sink = open_queue(queue, store, dead=receiver, letters=LetterLimits(letter_count=3))
    sink.write(made[0])
    Requests(store, STREAM).ask(Request("1", "discard", (), "an operator"))
    sink.serve_requests()
    with pytest.raises(SinkError, match="3 copies wait for the dead letter queue") as raised:
        for batch in made[1:]:
            sink.write(batch)
    assert raised.value.retry and raised.value.hint
    receiver.faults.clear()
    wait_until(lambda: not len(Outbox(store, STREAM)))
    sink.write(made[2])
    wait_until(lambda: len(copies(receiver)) == 4)
    sink.close()


def test_copies_end_also_if_they_are_told_to_just_when_they_look_for_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    outbox = Outbox(store, STREAM, LetterLimits())
    copier = Copier(outbox, Mock(), STREAM, WindowLimits())
    clear = copier._news.clear
    ending = threading.Thread(target=copier.close, daemon=True)

    def told_first() -> None:
        if ending.ident is None:
            ending.start()
            wait_until(lambda: copier._stop.is_set() and copier._news.is_set())
        clear()

    monkeypatch.setattr(copier._news, "clear", told_first)
    copier.start()
    wait_until(lambda: ending.ident is not None)
    ending.join(5.0)
    assert not ending.is_alive()
