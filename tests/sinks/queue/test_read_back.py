"""How much of a queue is read back after a restart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tailrace.errors import SinkError
from tailrace.log.epochs import take_epoch
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import Message
from tailrace.sinks.queue import sink as queue_sink
from tailrace.sinks.queue.progress import Progress
from tailrace.sinks.queue.sender import CLOCKS_S, Sender, Sought
from tailrace.sinks.queue.sink import QueueSink
from tailrace.sinks.queue.webhook import WebhookOptions, WebhookSender
from tailrace.storage import MemoryStore
from tests.capture.running import wait_until
from tests.sinks.queue.servers import STREAM, WebhookQueue, open_queue, webhook
from tests.sinks.queue.test_conformance import batches, event_id
from tests.sinks.source import Source, batch_of


class ReadableQueue(WebhookQueue):
    """Notes what is looked for, and finds nothing; or cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.sought: list[Sought] = []
        self.is_mute = False

    def sender(self, stream: str = STREAM) -> Sender:
        queue = self

        class Reading(WebhookSender):
            reads_back = True

            def arrived(self, sought: Sought) -> frozenset[str]:
                if queue.is_mute:
                    raise SinkError("no answer", retry=True)
                queue.sought.append(sought)
                return frozenset()

        return Reading(WebhookOptions(self.url))


class RememberingQueue(WebhookQueue):
    """Knows when each message came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, float] = {}

    def has(self, count: int) -> bool:
        return len(self.came) == count

    def sender(self, stream: str = STREAM) -> Sender:
        queue = self

        class Reading(WebhookSender):
            reads_back = True

            def send(self, messages: Sequence[Message]) -> list[Failure | None]:
                outcomes = super().send(messages)
                taken = zip(messages, outcomes, strict=True)
                came = {each.delivery_id for each, failure in taken if failure is None}
                queue.came |= dict.fromkeys(came - queue.came.keys(), time.time())
                return outcomes

            def arrived(self, sought: Sought) -> frozenset[str]:
                return frozenset(each for each, at in queue.came.items() if at >= sought.since_s)

        return Reading(WebhookOptions(self.url, batch_count=1))


def run(queue: ReadableQueue, store: MemoryStore) -> QueueSink:
    """A pipeline takes the stream over, and its first batch fails."""
    take_epoch(store, STREAM, node="")
    sink = open_queue(queue, store)
    with pytest.raises(SinkError):
        sink.write(batches()[1][0])
    return sink


def left_s(store: MemoryStore) -> list[float]:
    return [entry.modified_s for entry in store.list(f"streams/{STREAM}/left/")]


def test_f101_queue_is_read_up_to_the_end_of_a_run_that_was_ended_and_on_behind_one_that_died() -> (
    None
):
    store, queue = MemoryStore(), ReadableQueue()
    queue.faults.fail(3, Kind.INFRASTRUCTURE)
    run(queue, store).close()
    assert not queue.sought, "nothing was sent before"
    (first,) = left_s(store)
    # One that sends nothing, because it cannot read what has arrived, ends later.
    queue.is_mute = True
    run(queue, store).close()
    queue.is_mute = False
    second = max(left_s(store))
    assert second >= first
    dead = run(queue, store)
    assert [each.until_s for each in queue.sought] == [second + CLOCKS_S]
    assert left_s(store) == [], "it sends, and nobody knows until when"
    # As if it had died: nothing says that it sends no more.
    take_epoch(store, STREAM, node="")
    alive = open_queue(queue, store)
    with pytest.raises(SinkError):
        alive.write(batches()[1][0])
    assert [each.until_s for each in queue.sought[1:]] == [None]
    dead.close()
    alive.close()
    # The one that came late is not asked.
    run(queue, store).close()
    newest = Progress(store, STREAM)
    assert newest.since_s(1) is not None and queue.sought[2].until_s is not None
    queue.close()


def test_f101_nothing_is_noted_of_a_queue_that_is_not_read_back() -> None:
    store = MemoryStore()
    with webhook() as queue:
        sink = open_queue(queue, store)
        sink.write(batches()[1][0])
        sink.close()
    assert not left_s(store)


def test_f101_nothing_is_repeated_though_many_runs_are_stopped_within_one_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_sink, "CLOCKS_S", 0.0)
    store, queue, batch = MemoryStore(), RememberingQueue(), batches()[1][0]
    queue.asks_to_wait = True
    for key in range(5):
        queue.faults.fail(key, Kind.RETRIABLE)
    for key in range(5):
        take_epoch(store, STREAM, node="")
        sink = open_queue(queue, store)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, batch)
            wait_until(partial(queue.has, 2 + 2 * key))
            sink.stop()
            assert "told to stop" in str(writing.exception())
        sink.close()
        del queue.faults.keys[str(key)]
    take_epoch(store, STREAM, node="")
    sink = open_queue(queue, store)
    sink.write(batch)
    sink.close()
    queue.close()
    events = [event_id(message) for message in queue.received()]
    assert len(events) == len(set(events)) == 12


def test_f101_nothing_is_repeated_though_each_run_gets_on_by_less_than_half_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came last of all is ahead of the frontier from the first run on."""
    monkeypatch.setattr(queue_sink, "CLOCKS_S", 0.0)
    store, queue, source = MemoryStore(), RememberingQueue(), Source()
    for key in range(12):
        source.insert(id=key, n=0)
    batch, stuck = batch_of(1, source.take(), stream=STREAM), range(4, 10)
    queue.asks_to_wait = True
    for key in stuck:
        queue.faults.fail(key, Kind.RETRIABLE)
    for key in stuck:
        take_epoch(store, STREAM, node="")
        sink = open_queue(queue, store, window_count=8)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, batch)
            wait_until(partial(queue.has, 2 + key))
            sink.stop()
            assert "told to stop" in str(writing.exception())
        sink.close()
        del queue.faults.keys[str(key)]
    take_epoch(store, STREAM, node="")
    sink = open_queue(queue, store, window_count=8)
    sink.write(batch)
    sink.close()
    queue.close()
    events = [event_id(message) for message in queue.received()]
    assert len(events) == len(set(events)) == 12
