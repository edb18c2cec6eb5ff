"""A stream to a queue, killed at every step: each change arrives or is a dead letter, in order.

A kill is an exception that nobody catches: whatever is durable then is what a new run finds.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import LogFenced
from tailrace.log.epochs import take_epoch
from tailrace.sinks.queue import sink as queue_sink
from tailrace.sinks.queue.dead_letter import DeadLetters
from tailrace.sinks.queue.errors import Kind
from tailrace.sinks.queue.redrive import Request, Requests
from tailrace.storage import FileStore, Store
from tests.dying import dies_at, met_at
from tests.sinks.queue.servers import STREAM, WebhookQueue, open_queue, webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams.by_hand import Run

KEYS, ROUNDS, WINDOW = 6, 4, 4

STEPS = [
    "letter.after_floor",
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
]


def history(store: Store) -> None:
    """A table with an empty base, then changes of the same rows."""
    log, table = MadeLog(store), Table()
    log.insert(table, 0, KEYS)
    for number in range(1, ROUNDS):
        for key in range(KEYS):
            log.commit(table, table.update(key, key, f"note {number}", number))


def deliver(queue: WebhookQueue, store: Store) -> None:
    """To the end of the log, in small batches and windows; then what operators ask for. Whoever
    delivers takes the stream over.
    """
    fence = take_epoch(store, STREAM, node="test")
    sink = open_queue(queue, store, window_count=WINDOW)
    try:
        Run(store, sink, stream=STREAM, changes_max=8, fence=fence).to_end()
        sink.serve_requests()
    finally:
        sink.close()


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


def deliver_killed(queue: WebhookQueue, store: Store, step: str, patch: pytest.MonkeyPatch) -> None:
    """A run that ends at the step."""
    with dies_at(step, patch):
        deliver(queue, store)


@pytest.mark.parametrize("step", STEPS)
def test_f081_f099_stream_killed_at_any_step_loses_nothing_and_keeps_the_order(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sink, "REQUESTS_S", 3600.0)
    store = FileStore(tmp_path / "log")
    history(store)
    with webhook() as queue:
        queue.faults.fail(2, Kind.POISON)
        queue.faults.fail(4, Kind.RETRIABLE, times=failures(step))
        if step.startswith(("redrive", "letter.before_delete", "letter.after_delete")):
            deliver(queue, store)
            queue.faults.clear()
            ask_redrive(store)
        deliver_killed(queue, store, step, monkeypatch)
        queue.faults.clear()
        deliver(queue, store)
        if Requests(store, STREAM).audit("1") is None:
            ask_redrive(store)
            deliver(queue, store)
        found = events(queue.received())
    assert not DeadLetters(store, STREAM).names()
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
        deliver_killed(queue, store, step, monkeypatch)
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
    queue: WebhookQueue, store: Store, step: str, patch: pytest.MonkeyPatch, wake: list[int]
) -> None:
    """A run that is stopped at the step, and goes on there when its successor has done all."""

    def sleep(_: int) -> None:
        queue.faults.clear()
        deliver(queue, store)
        ask_redrive(store)
        deliver(queue, store)
        wake.append(len(queue.received()))

    # A redrive comes last: then there is nothing left to be fenced at.
    fenced = suppress(LogFenced) if "delete" in step else pytest.raises(LogFenced)
    with met_at(step, sleep, patch), fenced:
        deliver(queue, store)


@pytest.mark.parametrize("step", [step for step in STEPS if not step.startswith("redrive")])
def test_f082_zombie_that_wakes_after_its_successor_leaves_no_letter_and_repeats_one_window(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sink, "REQUESTS_S", 3600.0)
    store, wake = FileStore(tmp_path / "log"), list[int]()
    history(store)
    with webhook() as queue:
        queue.faults.fail(2, Kind.POISON)
        queue.faults.fail(4, Kind.RETRIABLE, times=failures(step))
        if step.startswith(("letter.before_delete", "letter.after_delete")):
            deliver(queue, store)
            queue.faults.clear()
            ask_redrive(store)
        deliver_stopped(queue, store, step, monkeypatch, wake)
        received = queue.received()
    assert not DeadLetters(store, STREAM).names()
    found = events(received)
    assert {key: len(ids) for key, ids in found.items()} == dict.fromkeys(range(KEYS), ROUNDS)
    for ids in found.values():
        assert ids == sorted(ids)
    assert len(received) - wake[0] <= WINDOW
