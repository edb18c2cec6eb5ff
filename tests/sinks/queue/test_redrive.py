"""A redrive of many letters: the stream flows beside it, in order, and nothing is sent twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Literal

import pytest

from tailrace.errors import SinkError, StoreError
from tailrace.log.epochs import take_epoch
from tailrace.sinks.letters.dead_letter import DeadLetters, root_of
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.redrive import Audit, Request, Requests
from tailrace.sinks.queue import QueueSink
from tailrace.sinks.queue.sender import Sender
from tailrace.sinks.queue.webhook import WebhookOptions, WebhookSender
from tailrace.storage import MemoryStore, Store
from tests.capture.running import wait_until
from tests.log.faulty_store import WatchedStore
from tests.sinks.queue.servers import SECRET, STREAM, WebhookQueue, open_queue
from tests.sinks.queue.test_conformance import (
    REDRIVE,
    ask,
    batches,
    by_key,
    check,
    event_id,
    letters,
)
from tests.sinks.source import Source, batch_of, load_of

PATIENCE_S = 60.0

REFUSED, LATER = 13, 14
OF_NUMBERS: dict[object, Kind] = {REFUSED: Kind.POISON, LATER: Kind.RETRIABLE}

WINDOW = 4
"""Half of the letters that there are."""


class StubbornStore(MemoryStore):
    """Deletes no letters while it `keeps` them, and says so."""

    keeps = False

    def delete(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        if self.keeps and any("/letters/" in key for key in gone):
            raise StoreError("deletes are not allowed")
        super().delete(gone)


class OneByOne(WebhookQueue):
    """Each request has one message; while it `refuses`, some are poison and some come again."""

    refuses = False

    def answer(self, body: bytes, headers: dict[str, str]) -> int | None:
        (message,) = json.loads(body)["messages"]
        kind = OF_NUMBERS.get((message["after"] or {}).get("n")) if self.refuses else None
        return self.status_of[kind] if kind else super().answer(body, headers)

    def sender(self, stream: str = STREAM) -> Sender:
        return WebhookSender(WebhookOptions(self.url, SECRET, batch_count=1))


class SlowStore(MemoryStore):
    """Gives two letters at a time or none."""

    def __init__(self) -> None:
        super().__init__()
        self._pair = threading.Barrier(2)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        if "/letters/" in key:
            self._pair.wait(PATIENCE_S)
        return super().get(key, start=start, length=length)


def refused(queue: WebhookQueue, store: MemoryStore) -> QueueSink:
    """A sink of which eight messages of four keys are letters, two of each."""
    for key in range(4):
        queue.faults.fail(key, Kind.POISON)
    sink = open_queue(queue, store, window_count=WINDOW)
    sink.write(batches()[1][0])
    queue.faults.clear()
    assert len(letters(store)) == 8
    return sink


def failing_puts(store: MemoryStore, *, after: int) -> Store:
    """Of letters, one that fails behind so many."""
    numbers = count()

    def check(what: str, key: str) -> None:
        if what == "put" and "/letters/" in key and next(numbers) == after:
            raise StoreError("busy")

    return WatchedStore(store, before=check)


def is_met(queue: WebhookQueue, unmet: tuple[Kind, int], store: MemoryStore) -> bool:
    """Whether the fault of key 2 has been met, and something waits."""
    return queue.faults.keys["2"] != unmet and len(letters(store)) > 0


@contextmanager
def redriving(
    queue: WebhookQueue, sink: QueueSink, store: MemoryStore, request: Request = REDRIVE
) -> Iterator[Future[None]]:
    """The block runs while the first portion is under way; the whole redrive is over behind it."""
    Requests(store, STREAM).ask(request)
    queue.faults.released.clear()
    queue.faults.holds_after = len(queue.bodies)
    with ThreadPoolExecutor(1) as pool:
        at_work = pool.submit(sink.serve_requests)
        assert queue.faults.held.wait(PATIENCE_S)
        try:
            yield at_work
        finally:
            queue.faults.clear()


def beside(sink: QueueSink, write: Callable[[], None]) -> threading.Thread:
    """Somebody who waits for the sink."""
    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: sink._lock.is_awaited)
    return writer


def test_f097_batch_flows_between_two_portions_of_a_redrive_and_its_keys_stay_in_order(
    receiver: WebhookQueue,
) -> None:
    store, made = MemoryStore(), batches()[1]
    sink = refused(receiver, store)
    with redriving(receiver, sink, store) as at_work:
        writer = beside(sink, lambda: sink.write(made[1]))
    at_work.result()
    writer.join()
    assert not letters(store), "also what came to wait behind them meanwhile"
    sink.write(made[2])
    sink.close()
    check(receiver)
    numbers = [message["source"]["batch"] for message in receiver.received()]
    assert len(numbers) == 24, "each once"
    # Of batch 2, keys 4 and 5 came before the second portion of batch 1.
    assert numbers[4:12] == [1, 1, 1, 1, 2, 2, 1, 1]
    audit = Requests(store, STREAM).audit(REDRIVE.id)
    assert audit is not None and len(audit.done) == 12 and not audit.failed


def test_f097_redrive_ends_while_each_batch_brings_more_letters_than_a_portion(
    receiver: WebhookQueue,
) -> None:
    store, (_, made) = MemoryStore(), batches(keys=2 * WINDOW, rounds=30)
    for key in range(2 * WINDOW):
        receiver.faults.fail(key, Kind.POISON)
    sink = open_queue(receiver, store, window_count=WINDOW)
    sink.write(made[0])
    receiver.faults.clear()
    written = 1

    def write_on() -> None:
        nonlocal written
        while written < len(made) and not at_work.done():
            sink.write(made[written])
            written += 1

    with redriving(receiver, sink, store) as at_work:
        writer = beside(sink, write_on)
    at_work.result()
    writer.join()
    assert written < len(made), "it did not wait for the stream to fall silent"
    sink.close()
    check(receiver, keys=2 * WINDOW, rounds=written + 1)
    assert not letters(store)


def test_f054_letters_that_a_load_outdoes_between_two_portions_are_not_sent_behind_it(
    receiver: WebhookQueue,
) -> None:
    store, (source, _) = MemoryStore(), batches()
    sink = refused(receiver, store)
    with redriving(receiver, sink, store) as at_work:
        writer = beside(sink, lambda: sink.load(load_of(2, source, stream=STREAM), source.base()))
    at_work.result()
    writer.join()
    sink.close()
    ops = [(message["op"], message["source"]["batch"]) for message in receiver.received()]
    behind = ops[ops.index(("t", 2)) :]
    assert behind == [("t", 2)] + 6 * [("r", 2)]
    audit = Requests(store, STREAM).audit(REDRIVE.id)
    assert audit is not None and len(audit.done) == len(audit.failed) == 4


def test_f081_redrive_is_left_at_the_end_of_a_portion_if_the_stream_stops(
    receiver: WebhookQueue,
) -> None:
    store, made = MemoryStore(), batches()[1]
    sink = refused(receiver, store)
    with redriving(receiver, sink, store) as at_work:
        sink._stop.set()
    assert isinstance(at_work.exception(), SinkError)
    sink.close()
    assert len(letters(store)) == 4
    sink = open_queue(receiver, store, window_count=WINDOW)
    sink.serve_requests()
    for batch in made[1:]:
        sink.write(batch)
    sink.close()
    check(receiver)
    assert len(receiver.received()) == 24


def test_f081_redrive_that_stops_while_it_tries_some_again_repeats_none_that_arrived() -> None:
    queue, store, made = OneByOne(), MemoryStore(), batches()[1]
    sink = refused(queue, store)
    queue.faults.fail(3, Kind.RETRIABLE)
    queue.asks_to_wait = True
    Requests(store, STREAM).ask(REDRIVE)
    with ThreadPoolExecutor(1) as pool:
        at_work = pool.submit(sink.serve_requests)
        wait_until(lambda: len(queue.received()) == 4 + 3)
        sink.stop()
    assert "told to stop" in str(at_work.exception())
    sink.close()
    assert len(letters(store)) == 8 - 3
    queue.faults.clear()
    sink = open_queue(queue, store, window_count=WINDOW)
    sink.serve_requests()
    for batch in made[1:]:
        sink.write(batch)
    sink.close()
    check(queue)
    assert len(queue.received()) == 24
    queue.close()


def test_f081_rows_that_were_named_are_redriven_to_their_last_letter_though_a_run_ends_between(
    receiver: WebhookQueue,
) -> None:
    store, made = MemoryStore(), batches()[1]
    sink = refused(receiver, store)
    first = {name.table_lane: name.key for name in reversed(DeadLetters(store, STREAM).names())}
    request = Request.new("redrive", first.values(), who="a test", now=0.0)
    with redriving(receiver, sink, store, request) as at_work:
        sink.stop()
    assert isinstance(at_work.exception(), SinkError)
    sink.close()
    assert len(letters(store)) == 4, "the second of each row"
    sink = open_queue(receiver, store, window_count=WINDOW)
    sink.serve_requests()
    assert not letters(store)
    for batch in made[1:]:
        sink.write(batch)
    sink.close()
    check(receiver)
    assert len(receiver.received()) == 24


def redrive_a_row_beside(
    queue: OneByOne, store: MemoryStore, change: Callable[[Source], None], *, refuses: bool = False
) -> Audit:
    """Three letters of row 1 are redriven by name, one by one; a batch comes behind the first."""
    source = Source()
    source.insert(id=1, n=0)
    for number in (1, 2):
        source.update(1, n=number)
    first = batch_of(1, source.take(), stream=STREAM)
    change(source)
    second = batch_of(2, source.take(), stream=STREAM)
    queue.faults.fail(1, Kind.POISON)
    sink = open_queue(queue, store, window_count=1)
    sink.write(first)
    name, *_ = DeadLetters(store, STREAM).names()
    queue.faults.clear()
    queue.refuses = refuses
    named = Request("1", "redrive", (name.key,), "an operator")
    with redriving(queue, sink, store, named) as at_work:
        writer = beside(sink, lambda: sink.write(second))
    writer.join(PATIENCE_S)
    at_work.result(PATIENCE_S)
    sink.close()
    audit = Requests(store, STREAM).audit(named.id)
    assert audit is not None
    return audit


def test_f097_rows_that_were_not_named_stay_though_they_came_to_wait_between_two_portions() -> None:
    def change(source: Source) -> None:
        source.insert(id=7, n=REFUSED)
        source.update(7, n=0)

    store = MemoryStore()
    with closing(OneByOne()) as queue:
        audit = redrive_a_row_beside(queue, store, change, refuses=True)
        assert {message["after"]["id"] for message in queue.received()} == {1}
    assert (len(audit.done), audit.failed) == (3, {})
    assert len(letters(store)) == 2


def test_f054_redrive_of_named_rows_takes_a_truncate_along_but_nothing_behind_it() -> None:
    """It waits for the rows that were named alone, and keeps the whole table waiting until then."""

    def change(source: Source) -> None:
        source.truncate()
        source.insert(id=7, n=1)
        source.insert(id=1, n=9)

    store = MemoryStore()
    with closing(OneByOne()) as queue:
        audit = redrive_a_row_beside(queue, store, change)
        came = [message["after"] and message["after"]["n"] for message in queue.received()]
    assert came == [0, 1, 2, None, 9]
    assert (len(audit.done), audit.failed) == (5, {})
    assert len(letters(store)) == 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("action", ["redrive", "discard"])
def test_f081_letters_whose_taking_over_was_interrupted_go_once_and_stay_away(
    receiver: WebhookQueue, is_killed: bool, action: Literal["redrive", "discard"]
) -> None:
    store, source = MemoryStore(), Source()
    source.insert(id=1, n=10)
    source.update(1, n=11)
    source.insert(id=2, n=0)
    batch = batch_of(1, source.take(), stream=STREAM)
    receiver.faults.fail(1, Kind.POISON)
    receiver.faults.fail(2, Kind.INFRASTRUCTURE)
    for view in (store, failing_puts(store, after=1)):
        take_epoch(store, STREAM, node="")
        sink = open_queue(receiver, view)
        with pytest.raises((SinkError, StoreError)):
            sink.write(batch)
        if view is store:
            sink.close()
    # One is there twice by now, as the one before and this one have put it.
    assert len(list(store.list(f"{root_of(STREAM)}letters/"))) == 3
    if is_killed:
        sink.close()
        take_epoch(store, STREAM, node="")
        sink = open_queue(receiver, store)
    del receiver.faults.keys["1"]
    ask(sink, store, Request("1", action, (), "an operator"))
    assert list(store.list(f"{root_of(STREAM)}letters/")) == []
    receiver.faults.clear()
    sink.write(batch)
    ask(sink, store, Request("2", "redrive", (), "an operator"))
    sink.close()
    rows = [message["after"] for message in receiver.received()]
    came = {key: [row["n"] for row in rows if row["id"] == key] for key in (1, 2)}
    assert came == {1: [10, 11] if action == "redrive" else [], 2: [0]}


def test_f081_what_came_before_a_letter_of_its_row_is_not_sent_nor_put_by_the_next_run() -> None:
    """Redriven with the letter, and without what had come between, it would be out of order."""
    store, source = MemoryStore(), Source()
    source.insert(id=2, n=0)
    source.insert(id=1, n=10)
    source.update(1, n=REFUSED)
    batch = batch_of(1, source.take(), stream=STREAM)
    with closing(OneByOne()) as queue:
        queue.refuses = queue.asks_to_wait = True
        for _ in range(2):
            queue.faults.fail(2, Kind.RETRIABLE)
            unmet = queue.faults.keys["2"]
            take_epoch(store, STREAM, node="")
            sink = open_queue(queue, store)
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(sink.write, batch)
                wait_until(partial(is_met, queue, unmet, store))
                sink.stop()
                assert "told to stop" in str(writing.exception())
            sink.close()
            assert len(letters(store)) == 1
        queue.refuses = False
        queue.faults.clear()
        take_epoch(store, STREAM, node="")
        sink = open_queue(queue, store)
        sink.write(batch)
        ask(sink, store, REDRIVE)
        sink.close()
        rows = [message["after"] for message in queue.received()]
    assert [row["n"] for row in rows if row["id"] == 1] == [10, REFUSED]


def test_letters_that_were_taken_over_while_they_are_redriven_are_not_looked_up_anew(
    receiver: WebhookQueue,
) -> None:
    """The request would begin again, and its audit tell of its last try alone."""
    store = MemoryStore()
    take_epoch(store, STREAM, node="")
    refused(receiver, store).close()
    take_epoch(store, STREAM, node="")
    sink = open_queue(receiver, store, window_count=WINDOW)
    with redriving(receiver, sink, store) as at_work:
        writer = beside(sink, lambda: sink.write(batches()[1][0]))
    writer.join(PATIENCE_S)
    at_work.result(PATIENCE_S)
    sink.close()
    audit = Requests(store, STREAM).audit(REDRIVE.id)
    assert audit is not None and (len(audit.done), audit.failed) == (8, {})
    assert letters(store) == []


def test_f099_letters_that_cannot_be_deleted_are_not_sent_again(receiver: WebhookQueue) -> None:
    store, made = StubbornStore(), batches()[1]
    sink = refused(receiver, store)
    store.keeps = True
    Requests(store, STREAM).ask(REDRIVE)
    for batch in made[1:]:
        for _ in range(3):
            with pytest.raises(StoreError):
                sink.serve_requests()
        sink.write(batch)
    store.keeps = False
    sink.serve_requests()
    sink.close()
    events = [event_id(message) for message in receiver.received()]
    assert len(events) == len(set(events)) == 24
    check(receiver)
    assert not letters(store) and by_key(receiver.received()).keys() == set(range(6))


def test_letters_are_read_side_by_side(receiver: WebhookQueue) -> None:
    store = SlowStore()
    for key in range(4):
        receiver.faults.fail(key, Kind.POISON)
    sink = open_queue(receiver, store, window_count=WINDOW)
    sink.write(batches()[1][0])
    receiver.faults.clear()
    Requests(store, STREAM).ask(REDRIVE)
    sink.serve_requests()
    sink.close()
    check(receiver, rounds=2)


@pytest.mark.parametrize("is_emptied", [False, True], ids=["updated", "emptied"])
def test_f097_nothing_older_comes_behind_a_letter_that_was_redriven_before_its_batch_came_again(
    is_emptied: bool,
) -> None:
    store, queue, source = MemoryStore(), OneByOne(), Source()
    for key in range(3):
        source.insert(id=key, n=0)
    if is_emptied:
        source.truncate()
        source.insert(id=1, n=LATER)
        source.insert(id=2, n=REFUSED)
    else:
        source.update(1, n=LATER)
        source.update(2, n=REFUSED)
    batch = batch_of(1, source.take(), stream=STREAM)
    queue.refuses = True
    sink = open_queue(queue, store)
    with pytest.raises(SinkError):
        sink.write(batch)
    sink.close()
    assert len(letters(store)) == 1
    queue.refuses = False
    sink = open_queue(queue, store)
    Requests(store, STREAM).ask(REDRIVE)
    sink.serve_requests()
    sink.write(batch)
    sink.close()
    rows: dict[object, int] = {}
    for message in queue.received():
        if message["op"] == "t":
            rows.clear()
        else:
            rows[message["after"]["id"]] = message["after"]["n"]
    queue.close()
    assert rows == {1: LATER, 2: REFUSED} | ({} if is_emptied else {0: 0})
    assert not letters(store)
