"""Replays into a target of rows: whatever the clocks said, and however busy the stream is, a row
ends as its last change left it.
"""

from __future__ import annotations

import threading
from decimal import Decimal
from functools import partial
from random import Random

import pytest

from tailrace.backoff import Backoff
from tailrace.errors import SinkError
from tailrace.sinks import Batch
from tailrace.sinks.memory import MemorySink
from tailrace.spark.options import NO_LIMIT
from tests.decode.wire import UNSENT
from tests.spark.made_log import MadeLog, Table
from tests.streams.by_hand import rows_of
from tests.streams.replaying import Replayed, time_of


@pytest.fixture
def orders() -> Table:
    return Table()


def clock(number: int) -> int:
    """What the server's clock says when it is at the n-th second; it may be set back."""
    return time_of(number) - time_of(0) + 700_000_000


@pytest.mark.parametrize("changes_max", [1, NO_LIMIT])
def test_f094_f105_change_of_a_clock_that_was_set_back_is_not_outdone_by_an_older_one(
    log: MadeLog, orders: Table, changes_max: int
) -> None:
    sink = MemorySink()
    log.insert(orders, 1, 4)
    changes = [orders.update(key, key, "at 5", None) for key in (1, 3, 4)]
    log.commit(orders, *changes, ts_us=clock(5))
    # Out of the range by their time, inside it by their place.
    log.commit(orders, orders.update(1, 1, "at 2", None), orders.delete(3), ts_us=clock(2))
    log.commit(orders, orders.update(4, 40, "moved at 2", None), ts_us=clock(2))
    log.commit(orders, orders.insert(5, "at 6", None), ts_us=clock(6))
    flow = Replayed(log.store, lambda _: sink, changes_max=changes_max)
    flow.go_on()
    outcome = flow.replay(time_of(4), time_of(7))
    assert (outcome.state, outcome.change_count) == ("done", 4)
    assert rows_of(sink) == orders.rows


def test_f094_f105_truncate_of_a_clock_that_was_set_back_empties_all_the_same(
    log: MadeLog, orders: Table
) -> None:
    sink = MemorySink()
    log.commit(orders, orders.insert(1, "at 5", None), ts_us=clock(5))
    log.commit(orders, orders.truncate(), ts_us=clock(2))
    log.commit(orders, orders.insert(2, "at 6", None), ts_us=clock(6))
    flow = Replayed(log.store, lambda _: sink)
    flow.go_on()
    assert flow.replay(time_of(4), time_of(7)).change_count == 2
    assert rows_of(sink) == orders.rows


def test_f064_f094_value_that_was_not_sent_is_that_of_the_change_before_whatever_its_time(
    log: MadeLog, orders: Table
) -> None:
    sink = MemorySink()
    log.commit(orders, orders.insert(1, "at 5", None), ts_us=clock(5))
    log.commit(orders, orders.update(1, 1, "at 2", None), ts_us=clock(2))
    log.commit(orders, orders.update(1, 1, UNSENT, Decimal(7)), ts_us=clock(6))
    orders.by_key[1] = (1, "at 2", Decimal(7))
    flow = Replayed(log.store, lambda _: sink)
    flow.go_on()
    assert flow.replay(time_of(4), time_of(7)).change_count == 2
    assert rows_of(sink) == orders.rows


class Turn:
    """A lock that tells when somebody waits for it."""

    def __init__(self) -> None:
        self.is_wanted = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Unhurried(MemorySink):
    """Once busy, it has a live batch under way until somebody waits for the turn."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn
        self.is_busy = False
        self.is_under_way = threading.Event()

    def write(self, batch: Batch) -> None:
        if self.is_busy and not batch.replay:
            self.is_under_way.set()
            # One who never comes is waited for, too, so that the test ends.
            self._turn.is_wanted.wait(10)
        super().write(batch)


def test_f105_replay_beside_a_stream_that_always_has_a_batch_under_way_is_not_interrupted(
    log: MadeLog, orders: Table, caplog: pytest.LogCaptureFixture
) -> None:
    turn = Turn()
    sink = Unhurried(turn)
    log.insert(orders, 1, 6)
    flow = Replayed(log.store, lambda _: sink, changes_max=2, turn=turn)
    flow.go_on()
    sink.is_busy = True
    live: list[threading.Thread] = []

    def have_one_under_way() -> None:
        for thread in live:
            thread.join()
        turn.is_wanted.clear()
        sink.is_under_way.clear()
        log.commit(orders, orders.update(1, 1, f"batch {len(live)}", None))
        live.append(threading.Thread(target=flow.go_on))
        live[-1].start()
        assert sink.is_under_way.wait(60)

    flow.before_batch = have_one_under_way
    outcome = flow.replay(time_of(1), time_of(1))
    live[-1].join()
    assert (outcome.state, outcome.change_count, len(live)) == ("done", 6, 3)
    assert "interrupted" not in caplog.text
    assert rows_of(sink) == orders.rows


class Reluctant(MemorySink):
    """Takes every batch of a replay at the second attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._attempt_count = 0

    def write(self, batch: Batch) -> None:
        self._attempt_count += bool(batch.replay)
        if batch.replay and self._attempt_count % 2:
            raise SinkError("not now", retry=True)
        super().write(batch)


class Counted(Backoff):
    """Tells how many failures in a row there were before, and does not wait."""

    def __init__(self, random: Random, before: list[int]) -> None:
        super().__init__(random)
        self._before = before

    def next_s(self) -> float:
        self._before.append(self._failures)
        super().next_s()
        return 0.0


def test_replay_that_gets_on_does_not_wait_longer_after_each_failure(
    log: MadeLog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[int] = []
    made = partial(Counted, before=before)
    monkeypatch.setattr("tailrace.streams.replay.look.Backoff", made)
    sink = Reluctant()
    log.insert(orders, 1, 6)
    flow = Replayed(log.store, lambda _: sink, changes_max=2)
    flow.go_on()
    assert flow.replay(time_of(1)).state == "done"
    assert before == [0, 0, 0]
