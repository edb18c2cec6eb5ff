"""A stream to a queue, killed at every step: each change arrives or is a dead letter, in order.

The killed are processes of their own: whatever is durable then is what a new run finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import LogFenced
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.redrive import Request, Requests
from tailrace.sinks.queue import sink as queue_sink
from tailrace.storage import FileStore, Store
from tests.dying import met_at
from tests.nursery import die
from tests.sinks.queue.moto_server import any_keys, moto_server
from tests.sinks.queue.servers import STREAM, Gate, KinesisQueue, Queue, WebhookQueue, webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams import killed_queue
from tests.streams.killed_queue import WINDOW, deliver

KEYS, ROUNDS = 6, 4

TAKING_OVER = ["letter.between_copies", "letter.before_floor", "letter.after_floor"]
STEPS = [
    *TAKING_OVER,
    "batch.before_fix",
    "batch.before_write",
    "queue.after_send:2",
    "queue.before_answer",
    "queue.before_retry",
    "letter.before_put",
    "letter.after_put:2",
    "progress.before_save",
    "progress.after_save",
    "batch.after_write",
    "batch.after_finish",
    "load.before_fix",
    "load.before_write",
    "load.after_write",
    "load.after_finish",
    "redrive.before_send",
    "redrive.after_send",
    "letter.before_delete",
    "letter.after_delete",
    "redrive.before_audit",
    "redrive.after_audit",
]


def history(store: Store) -> None:
    """A table with an empty base, then changes of the same rows."""
    log, table = MadeLog(store), Table()
    log.insert(table, 0, KEYS)
    for number in range(1, ROUNDS):
        for key in range(KEYS):
            log.commit(table, table.update(key, key, f"note {number}", number))


def ask_redrive(store: Store) -> None:
    Requests(store, STREAM).ask(Request("1", "redrive", (), "an operator"))


def failures(step: str) -> int:
    """Of a message. While others are on their way nobody waits for it alone, so where that is to be
    met it fails long enough to be the last one.
    """
    return 6 if step == "queue.before_retry" else 2


def events(messages: list[dict[str, Any]]) -> dict[object, list[str]]:
    """By key, in the order of their first arrival."""
    found: dict[object, list[str]] = defaultdict(list)
    for message in messages:
        if message["op"] != "t":
            row = message["after"] or message["before"]
            found[row["id"]].append(message["source"]["event_id"])
    return {key: list(dict.fromkeys(ids)) for key, ids in found.items()}


def repeat_count(messages: list[dict[str, Any]]) -> int:
    """How many were there before."""
    ids = [(each["source"]["event_id"], each["source"]["batch"]) for each in messages]
    return len(ids) - len(set(ids))


def fail_some(queue: Queue, step: str) -> None:
    """Two rows are refused for good, so that their letters are more than a window; one for now."""
    for key in (2, 3):
        queue.faults.fail(key, Kind.POISON)
    queue.faults.fail(4, Kind.RETRIABLE, times=failures(step))


def deliver_killed(queue: Queue, store: FileStore, step: str, output: Path) -> None:
    """A process that ends at the step."""
    told = killed_queue.told(queue, store)
    die(killed_queue.main, *told, failpoint=step, output=output)


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[str, Gate]]:
    """Kinesis."""
    with any_keys(), moto_server() as (endpoint, gate):
        yield endpoint, gate


@pytest.fixture(params=["webhook", "kinesis"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """Each whose server begins soon."""
    if request.param == "webhook":
        with webhook() as receiver:
            yield receiver
    else:
        with closing(KinesisQueue(*request.getfixturevalue("moto"))) as stream:
            yield stream


@pytest.mark.parametrize("step", STEPS)
def test_f081_f099_stream_killed_at_any_step_keeps_the_order_and_repeats_one_window(
    tmp_path: Path, queue: Queue, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sink, "REQUESTS_S", 3600.0)
    store = FileStore(tmp_path / "log")
    history(store)
    fail_some(queue, step)
    if step.startswith(("redrive", "letter.before_delete", "letter.after_delete")):
        deliver(queue, store)
        queue.faults.clear()
        ask_redrive(store)
    elif step in TAKING_OVER:
        # So that there are letters of a batch that is not done, to be taken over.
        deliver_killed(queue, store, "letter.after_put:2", tmp_path / "output.txt")
    deliver_killed(queue, store, step, tmp_path / "output.txt")
    queue.faults.clear()
    deliver(queue, store)
    if Requests(store, STREAM).audit("1") is None:
        ask_redrive(store)
        deliver(queue, store)
    received = queue.received()
    found, death_count = events(received), 2 if step in TAKING_OVER else 1
    assert repeat_count(received) <= death_count * WINDOW
    assert not DeadLetters(store, STREAM).names()
    assert not Requests(store, STREAM).pending()
    assert {key: len(ids) for key, ids in found.items()} == dict.fromkeys(range(KEYS), ROUNDS)
    for ids in found.values():
        assert ids == sorted(ids)


@pytest.mark.parametrize(
    "step",
    ["discard.before_audit", "discard.after_audit", "letter.before_delete", "letter.after_delete"],
)
def test_f081_discard_killed_at_any_step_is_done_by_the_next_run_and_told_once(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sink, "REQUESTS_S", 3600.0)
    store = FileStore(tmp_path / "log")
    history(store)
    with webhook() as queue:
        queue.faults.fail(2, Kind.POISON)
        deliver(queue, store)
        queue.faults.clear()
        names = DeadLetters(store, STREAM).names()
        keys = tuple(name.key for name in names)
        Requests(store, STREAM).ask(Request("1", "discard", keys, "an operator"))
        deliver_killed(queue, store, step, tmp_path / "output.txt")
        deliver(queue, store)
        found = events(queue.received())
    assert len(names) == ROUNDS and not DeadLetters(store, STREAM).names()
    audit = Requests(store, STREAM).audit("1")
    assert audit is not None and audit.done == tuple(name.place for name in names)
    assert not Requests(store, STREAM).pending()
    assert {key: len(ids) for key, ids in found.items()} == {
        key: ROUNDS for key in range(KEYS) if key != 2
    }


def deliver_stopped(
    queue: WebhookQueue, store: Store, step: str, patch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped at the step, and goes on there when its successor has done all."""

    def sleep(_: int) -> None:
        queue.faults.clear()
        deliver(queue, store)
        ask_redrive(store)
        deliver(queue, store)

    # The end of a redrive comes last: then there is nothing left to be fenced at.
    is_last = step in {"redrive.before_audit", "redrive.after_audit"}
    fenced = nullcontext() if is_last else pytest.raises(LogFenced)
    with met_at(step, sleep, patch), fenced:
        deliver(queue, store)


@pytest.mark.parametrize("step", STEPS)
def test_f082_zombie_that_wakes_after_its_successor_leaves_no_letter_and_repeats_one_window(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sink, "REQUESTS_S", 3600.0)
    store = FileStore(tmp_path / "log")
    history(store)
    with webhook() as queue:
        fail_some(queue, step)
        if step.startswith(("redrive", "letter.before_delete", "letter.after_delete")):
            deliver(queue, store)
            queue.faults.clear()
            ask_redrive(store)
        elif step in TAKING_OVER:
            deliver_killed(queue, store, "letter.after_put:2", tmp_path / "output.txt")
        deliver_stopped(queue, store, step, monkeypatch)
        received = queue.received()
    assert not DeadLetters(store, STREAM).names()
    found = events(received)
    assert {key: len(ids) for key, ids in found.items()} == dict.fromkeys(range(KEYS), ROUNDS)
    for ids in found.values():
        assert ids == sorted(ids)
    assert repeat_count(received) <= (2 if step in TAKING_OVER else 1) * WINDOW
