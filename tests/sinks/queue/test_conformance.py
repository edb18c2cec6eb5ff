"""What every queue sink promises: all records, in order for each key, whatever fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.errors import SinkError, StoreError
from tailrace.sinks import Batch
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.letters.message import Message
from tailrace.sinks.letters.redrive import Request, Requests
from tailrace.sinks.queue import QueueSink
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.json_columns import Style
from tailrace.sinks.queue.progress import Progress
from tailrace.sinks.queue.sender import Sender, Sought
from tailrace.sinks.queue.webhook import WebhookOptions, WebhookSender
from tailrace.storage import Data, MemoryStore
from tests.sinks.queue.servers import (
    STREAM,
    KinesisQueue,
    Queue,
    WebhookQueue,
    id_of,
    open_queue,
)
from tests.sinks.queue.watched import WatchedQueue, WatchedStore
from tests.sinks.source import Source, batch_of, load_of


class FullStore(MemoryStore):
    """Takes no dead letters while `is_full`."""

    is_full = False

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        if self.is_full and "/letters/" in key:
            raise StoreError("no space left")
        super().put_new(key, data, is_bulk=is_bulk)


def batches(*, keys: int = 6, rounds: int = 4) -> tuple[Source, list[Batch]]:
    """Each key is inserted, then updated in each batch."""
    source, made = Source(), []
    for key in range(keys):
        source.insert(id=key, n=0)
    for number in range(1, rounds):
        for key in range(keys):
            source.update(key, n=number)
        made.append(batch_of(number, source.take(), stream=STREAM))
    return source, made


def event_id(message: dict[str, Any]) -> str:
    return str(message["source"]["event_id"])


def by_key(messages: Sequence[dict[str, Any]]) -> dict[object, list[str]]:
    found = defaultdict(list)
    for message in messages:
        found[id_of(message)].append(event_id(message))
    return dict(found)


def once(events: Sequence[str]) -> list[str]:
    """Without repetitions."""
    return list(dict.fromkeys(events))


def check(queue: Queue, *, keys: int = 6, rounds: int = 4, without: Sequence[int] = ()) -> None:
    """Everything has arrived, and each key in order."""
    found = by_key(queue.received())
    for key in range(keys):
        events = once(found.get(key, []))
        assert events == sorted(events), f"order of {key}"
        assert len(events) == (0 if key in without else rounds), f"count of {key}"


def letters(store: MemoryStore) -> list[str]:
    kept = DeadLetters(store, STREAM)
    return [kept.read(name).event_id for name in kept.names()]


def ask(sink: QueueSink, store: MemoryStore, request: Request) -> None:
    Requests(store, STREAM).ask(request)
    sink.serve_requests()


REDRIVE = Request("1", "redrive", (), "an operator")


def test_every_change_arrives_once_and_in_order_of_its_key(queue: Queue) -> None:
    sink, (_, made) = open_queue(queue, MemoryStore()), batches()
    for batch in made:
        sink.write(batch)
    sink.close()
    check(queue)
    assert len(queue.received()) == 24


def test_f096_f097_retries_keep_the_order_of_keys_and_lose_nothing(queue: Queue) -> None:
    store, (_, made) = MemoryStore(), batches()
    queue.faults.fail(1, Kind.RETRIABLE, times=3)
    queue.faults.fail(4, Kind.RETRIABLE, times=2)
    sink = open_queue(queue, store)
    for batch in made:
        sink.write(batch)
    sink.close()
    check(queue)
    assert len(queue.received()) == 24, "what was taken is not sent again"
    assert not letters(store)


def test_poison_parks_its_key_also_after_a_restart_and_redrive_keeps_the_order(
    queue: Queue,
) -> None:
    store, (_, made) = MemoryStore(), batches()
    queue.faults.fail(2, Kind.POISON)
    sink = open_queue(queue, store)
    sink.write(made[0])
    sink.close()
    sink = open_queue(queue, store)
    queue.faults.clear()
    sink.write(made[1])
    check(queue, rounds=3, without=[2])
    assert len(letters(store)) == 3
    ask(sink, store, REDRIVE)
    assert not letters(store)
    sink.write(made[2])
    sink.close()
    check(queue)
    audit = Requests(store, STREAM).audit("1")
    assert audit is not None and len(audit.done) == 3 and not audit.failed


def test_redrive_of_what_is_still_bad_changes_nothing(receiver: WebhookQueue) -> None:
    store, (_, made) = MemoryStore(), batches()
    receiver.faults.fail(2, Kind.POISON)
    sink = open_queue(receiver, store)
    for batch in made:
        sink.write(batch)
    before = letters(store)
    ask(sink, store, REDRIVE)
    sink.close()
    assert letters(store) == before and len(before) == 4
    check(receiver, without=[2])
    audit = Requests(store, STREAM).audit("1")
    assert audit is not None and len(audit.failed) == 4


def test_discard_leaves_an_audit_line_and_lets_the_key_go_on(receiver: WebhookQueue) -> None:
    store, (_, made) = MemoryStore(), batches()
    receiver.faults.fail(2, Kind.POISON)
    sink = open_queue(receiver, store)
    sink.write(made[0])
    receiver.faults.clear()
    names = DeadLetters(store, STREAM).names()
    ask(sink, store, Request("1", "discard", (names[0].key,), "me"))
    assert len(letters(store)) == 1
    ask(sink, store, Request("2", "redrive", (), "me"))
    sink.write(made[1])
    sink.close()
    assert len(by_key(receiver.received())[2]) == 2
    audit = Requests(store, STREAM).audit("1")
    assert audit is not None and audit.done == (names[0].place,) and audit.request.who == "me"


def test_f098_infrastructure_fault_stops_with_a_hint_and_goes_on_when_it_is_cured(
    queue: Queue,
) -> None:
    store, (_, made) = MemoryStore(), batches()
    queue.faults.fail(3, Kind.INFRASTRUCTURE)
    sink = open_queue(queue, store, parks_exhausted=True)
    with pytest.raises(SinkError) as raised:
        sink.write(made[0])
    assert raised.value.retry and raised.value.hint
    assert not letters(store)
    queue.faults.clear()
    for batch in made:
        sink.write(batch)
    sink.close()
    check(queue)
    assert len(queue.received()) == 24, "what was taken is not sent again"


def test_server_that_is_down_for_a_while_costs_nothing(queue: Queue) -> None:
    store, (_, made) = MemoryStore(), batches()
    queue.faults.is_down = True
    sink = open_queue(queue, store)
    with pytest.raises(SinkError) as raised:
        sink.write(made[0])
    assert raised.value.retry
    queue.faults.clear()
    for batch in made:
        sink.write(batch)
    sink.close()
    check(queue)
    assert not letters(store)


def test_exhausted_retries_are_dead_letters_if_that_is_asked_for(receiver: WebhookQueue) -> None:
    store, (_, made) = MemoryStore(), batches()
    receiver.faults.fail(5, Kind.RETRIABLE)
    sink = open_queue(receiver, store, parks_exhausted=True)
    for batch in made:
        sink.write(batch)
    sink.close()
    check(receiver, without=[5])
    kept = DeadLetters(store, STREAM)
    first, *rest = [kept.read(name) for name in kept.names()]
    assert (first.kind, first.sink) == ("retriable", receiver.kind)
    assert first.attempt_count >= 6, "as often as configured, then alone"
    assert len(rest) == 3 and not any(letter.error for letter in rest)


def test_f099_store_that_takes_no_dead_letter_stops_the_stream_before_it(
    receiver: WebhookQueue,
) -> None:
    store, (_, made) = FullStore(), batches()
    receiver.faults.fail(0, Kind.POISON)
    sink = open_queue(receiver, store)
    store.is_full = True
    with pytest.raises(StoreError):
        sink.write(made[0])
    store.is_full = False
    for batch in made:
        sink.write(batch)
    sink.close()
    check(receiver, without=[0])
    assert len(letters(store)) == 4


def test_f099_full_dead_letters_stop_the_stream_until_there_is_room(receiver: WebhookQueue) -> None:
    store, (_, made) = MemoryStore(), batches()
    receiver.faults.fail(0, Kind.POISON)
    sink = open_queue(receiver, store, letters=LetterLimits(letter_count=3))
    sink.write(made[0])
    with pytest.raises(SinkError, match="dead letters of stream orders are full") as raised:
        for batch in made[1:]:
            sink.write(batch)
    assert raised.value.retry and "tailrace dlq" in raised.value.hint
    receiver.faults.clear()
    ask(sink, store, REDRIVE)
    for batch in made[1:]:
        sink.write(batch)
    sink.close()
    check(receiver)


def test_f081_batch_after_a_restart_repeats_at_most_a_window_under_the_same_ids(
    queue: Queue,
) -> None:
    store, (_, made) = MemoryStore(), batches(keys=30)
    queue.faults.fail(29, Kind.INFRASTRUCTURE)
    sink = open_queue(queue, store, window_count=8)
    with pytest.raises(SinkError):
        sink.write(made[0])
    sink.close()
    before = len(queue.received())
    queue.faults.clear()
    sink = open_queue(queue, store, window_count=8)
    for batch in made:
        sink.write(batch)
    sink.close()
    check(queue, keys=30)
    repeated = len(queue.received()) - 30 * 4
    assert before > 8 and repeated <= (8 if queue.kind == "webhook" else 0)


def test_same_changes_of_another_stream_are_not_taken_for_ones_own(queue: Queue) -> None:
    store, (_, made) = MemoryStore(), batches()
    sink = open_queue(queue, MemoryStore(), stream="others")
    sink.write(made[0])
    sink.close()
    # A run that died before it has sent anything.
    Progress(store, STREAM).save(1, 0)
    sink = open_queue(queue, store)
    sink.write(made[0])
    sink.close()
    names = [message["source"]["name"] for message in queue.received()]
    assert names.count("others") == names.count(STREAM) == 12


def rendered(batch: Batch) -> list[Message]:
    return Renderer(STREAM, Style.DEBEZIUM).changes(batch.tables, batch.sequence)


def test_f097_slow_server_meets_a_window_that_stays_bounded_and_a_position_that_waits(
    queue: Queue,
) -> None:
    source, watched = Source(), WatchedQueue(queue)
    store = WatchedStore(watched)
    for key in range(20):
        source.insert(id=key, n=0)
    small = batch_of(1, source.take(), stream=STREAM)
    for key in range(20):
        source.update(key, doc="x" * 1000)
    large = batch_of(2, source.take(), stream=STREAM)
    queue.faults.slow_s = 0.02
    sink = open_queue(watched, store, window_count=8, window_bytes=8_000)
    peaks = []
    for batch in (small, large):
        watched.begin(rendered(batch))
        sink.write(batch)
        peaks.append((watched.count_peak, watched.bytes_peak))
    sink.close()
    check(queue, keys=20, rounds=2)
    assert len(queue.received()) == 40, "none twice"
    assert peaks[0][0] == 8, "as many as may be"
    assert 4_000 < peaks[1][1] <= 8_000 and watched.count_peak == 8
    assert watched.request_peak <= 3 and not store.is_ahead and not letters(store)


def test_f097_server_that_answers_after_the_timeout_gets_the_same_again_in_order(
    patient: WebhookQueue | KinesisQueue,
) -> None:
    watched, (_, made) = WatchedQueue(patient), batches()
    store = WatchedStore(watched)
    patient.timeout_s = 0.3
    patient.faults.slow_s, patient.faults.slow_count = 0.6, 2
    sink = open_queue(watched, store, window_count=8, parks_exhausted=True)
    for batch in made:
        watched.begin(rendered(batch))
        sink.write(batch)
    sink.close()
    check(patient)
    repeated = len(patient.received()) - 24
    assert 0 < repeated <= watched.unanswered, "only what was not answered"
    assert not store.is_ahead and not letters(store), "silence makes no dead letter"


class CompactedQueue(WebhookQueue):
    """Of the messages that have arrived it shows some, as a topic that is compacted may."""

    shown: frozenset[str] = frozenset()

    def sender(self, stream: str = STREAM) -> Sender:
        shown = self.shown

        class Reading(WebhookSender):
            reads_back = True

            def arrived(self, sought: Sought) -> frozenset[str]:
                return shown

        return Reading(WebhookOptions(self.url))


def test_f101_what_came_before_an_arrived_message_of_its_key_is_not_sent_after_it() -> None:
    store, (_, made) = MemoryStore(), batches()
    queue = CompactedQueue()
    queue.shown = frozenset({rendered(made[0])[-1].delivery_id})
    Progress(store, STREAM).save(1, 0)
    sink = open_queue(queue, store)
    sink.write(made[0])
    sink.close()
    queue.close()
    counts = {key: len(events) for key, events in by_key(queue.received()).items()}
    assert counts == dict.fromkeys(range(5), 2), "all but key 5, whose last one has arrived"


def test_base_comes_behind_a_truncate_as_rows_read(receiver: WebhookQueue) -> None:
    store, source = MemoryStore(), Source()
    for key in range(5):
        source.insert(id=key, n=key)
    source.take()
    sink = open_queue(receiver, store)
    sink.load(load_of(1, source), source.base())
    source.update(3, n=30)
    sink.write(batch_of(2, source.take(), stream=STREAM))
    sink.close()
    ops = [message["op"] for message in receiver.received()]
    assert sorted(ops) == ["r"] * 5 + ["t", "u"]
    assert ops[0] == "t" and ops[-1] == "u"
    assert len({event_id(message) for message in receiver.received()}) == 7


def long_base(keys: int = 40) -> Source:
    """A table whose base comes in parts of two rows, far smaller than a window."""
    source = Source()
    for key in range(keys):
        source.insert(id=key, n=key)
    source.take()
    return source


def test_base_that_is_interrupted_goes_on_where_it_was(queue: Queue) -> None:
    store, source = MemoryStore(), long_base()
    queue.faults.fail(31, Kind.INFRASTRUCTURE)
    sink = open_queue(queue, store, window_count=8)
    with pytest.raises(SinkError):
        sink.load(load_of(1, source), source.base())
    queue.faults.clear()
    sink.load(load_of(1, source), source.base())
    sink.close()
    found = [event_id(message) for message in queue.received()]
    assert len(found) == len(set(found)) == 41, "what was taken is not sent again"


def test_f101_load_that_comes_again_at_once_is_not_taken_for_the_first_one(queue: Queue) -> None:
    store, source = MemoryStore(), long_base(keys=6)
    base, loads = source.base(), [load_of(sequence, source) for sequence in (1, 4)]
    for key in range(6):
        source.update(key, n=100)
    changes = source.take()
    sink = open_queue(queue, store)
    sink.load(loads[0], base)
    sink.write(batch_of(2, changes, stream=STREAM))
    sink.close()
    # The stream is reset; its second load is interrupted behind the TRUNCATE.
    for key in range(6):
        queue.faults.fail(key, Kind.INFRASTRUCTURE)
    sink = open_queue(queue, store)
    with pytest.raises(SinkError):
        sink.load(loads[1], base)
    sink.close()
    queue.faults.clear()
    sink = open_queue(queue, store)
    sink.load(loads[1], base)
    queue.faults.fail(3, Kind.RETRIABLE, times=1)
    sink.write(batch_of(5, changes, stream=STREAM))
    sink.close()
    found = by_key(queue.received())
    assert all(len(found[key]) == 4 and len(set(found[key])) == 2 for key in range(6))
    truncates = len(found[None])
    assert truncates == 2 or (truncates == 3 and queue.kind == "webhook")


def test_f081_base_after_a_restart_repeats_at_most_a_window(queue: Queue) -> None:
    store, source = MemoryStore(), long_base()
    queue.faults.fail(31, Kind.INFRASTRUCTURE)
    sink = open_queue(queue, store, window_count=8)
    with pytest.raises(SinkError):
        sink.load(load_of(1, source), source.base())
    sink.close()
    queue.faults.clear()
    sink = open_queue(queue, store, window_count=8)
    sink.load(load_of(1, source), source.base())
    sink.close()
    found = [event_id(message) for message in queue.received()]
    assert len(set(found)) == 41
    assert len(found) - 41 <= (8 if queue.kind == "webhook" else 0)


def test_load_outdoes_older_dead_letters_which_are_never_sent_again(receiver: WebhookQueue) -> None:
    store, (source, made) = MemoryStore(), batches()
    receiver.faults.fail(2, Kind.POISON)
    sink = open_queue(receiver, store)
    sink.write(made[0])
    receiver.faults.clear()
    sink.load(load_of(9, source), source.base())
    ask(sink, store, REDRIVE)
    sink.close()
    found = by_key(receiver.received())[2]
    assert len(found) == 1 and found[0].endswith("-r")
    assert len(letters(store)) == 2, "kept until somebody discards them"
    audit = Requests(store, STREAM).audit("1")
    assert audit is not None and set(audit.failed.values()) == {
        "its table was loaded or emptied since"
    }


def test_f054_truncate_behind_a_dead_letter_holds_its_table_until_redrive(
    receiver: WebhookQueue,
) -> None:
    store, (source, made) = MemoryStore(), batches()
    receiver.faults.fail(2, Kind.POISON)
    sink = open_queue(receiver, store)
    sink.write(made[0])
    source.truncate()
    source.insert(id=1, n=100)
    sink.write(batch_of(2, source.take(), stream=STREAM))
    assert len(letters(store)) == 4
    receiver.faults.clear()
    ask(sink, store, REDRIVE)
    sink.close()
    assert not letters(store)
    ops = [message["op"] for message in receiver.received()]
    assert ops.count("t") == 1
    assert ops[-2:] == ["t", "c"]
