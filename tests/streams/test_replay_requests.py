"""Requests for replays while processes are stopped: whatever wakes late harms no request but its
own.

The one that sleeps is stopped before each operation of the store in turn, so there is no place
between two of them that is not met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NoReturn

import pytest

from tailrace.errors import ConfigError, LogFenced
from tailrace.log.retention import reader_positions
from tailrace.model import Relation
from tailrace.sinks import Batch
from tailrace.sinks.memory import MemorySink
from tailrace.storage import MemoryStore
from tailrace.storage.store import Data, Entries
from tailrace.streams.replay import Request
from tailrace.streams.replay.keys import Keys
from tailrace.streams.replay.outcome import outcome_of
from tests.dying import met_at
from tests.log.faulty_store import Killed
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of


class SleepyStore(MemoryStore):
    """While it is `armed`, lets others act before the n-th operation."""

    def __init__(self) -> None:
        super().__init__()
        self.was_met = False
        self._left = 0
        self._others: Callable[[], None] = lambda: None

    @contextmanager
    def armed(self, number: int, others: Callable[[], None]) -> Iterator[None]:
        self._left, self._others = number, others
        try:
            yield
        finally:
            self._left = 0

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        self._met()
        super().put_new(key, data, is_bulk=is_bulk)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self._met()
        return super().get(key, start=start, length=length)

    def list(self, prefix: str, *, after: str = "") -> Entries:
        self._met()
        return super().list(prefix, after=after)

    def delete(self, keys: Iterable[str]) -> None:
        self._met()
        super().delete(keys)

    def _met(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.was_met = True
            self._others()


class DyingSink(MemorySink):
    """Ends the process at its first batch."""

    def write(self, batch: Batch) -> NoReturn:
        raise Killed

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        return dict.fromkeys((relation.qualified for relation in relations), 0)


def delivered(store: SleepyStore) -> Replayed:
    """Four transactions, at their sink, by a pipeline of the first epoch."""
    log, table, sink = MadeLog(store), Table(), MemorySink()
    for number in range(1, 5):
        log.insert(table, number)
    flow = Replayed(store, lambda _: sink).taken_over()
    flow.go_on()
    return flow


def every_operation(act: Callable[[SleepyStore, int], None]) -> None:
    """Stop before each operation of what `act` does, until it does no more of them."""
    for number in count(1):
        store = SleepyStore()
        act(store, number)
        if not store.was_met:
            assert number > 3, "something was met"
            return


def begun(flow: Replayed) -> tuple[str, int | None]:
    """Ask for the next replay and let it die at its first batch: its id, and what is kept."""
    asked = flow.ask(time_of(2))
    sink, flow.open_sink = flow.open_sink, lambda _: DyingSink()
    with pytest.raises(Killed):
        flow.serve()
    flow.open_sink = sink
    return asked.id, kept(flow)


def kept(flow: Replayed) -> int | None:
    """From where on retention keeps the log for replays, if it does."""
    found = reader_positions(flow.store)
    return min((position for name, position in found.items() if name != STREAM), default=None)


def current_id(flow: Replayed) -> str:
    request = flow.replays.current(STREAM)
    assert request is not None, "the request is there"
    return request.id


def test_f082_zombie_that_ends_its_replay_late_touches_nothing_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(store: SleepyStore, number: int) -> None:
        zombie = delivered(store)
        zombie.ask(time_of(1))
        left: list[tuple[str, int | None]] = []

        def others() -> None:
            other = zombie.taken_over()
            if other.replays.current(STREAM) is not None:
                other.serve()
            left.append(begun(other))

        with ExitStack() as stack:
            arm = stack.enter_context
            step = "replay.before_clear"
            with met_at(step, lambda _: arm(store.armed(number, others)), monkeypatch):
                zombie.serve()
        for asked, keeps in left:
            assert keeps and current_id(zombie) == asked
            assert kept(zombie) == keeps
            assert zombie.taken_over().serve().state == "done"
            assert kept(zombie) is None

    every_operation(stopped)


def test_f082_zombie_that_discards_a_damaged_request_late_ends_no_other() -> None:
    def stopped(store: SleepyStore, number: int) -> None:
        zombie = delivered(store)
        zombie.ask(time_of(1))
        key = Keys(STREAM).request(1)
        store.delete([key])
        store.put_new(key, b"{}")
        left: list[tuple[str, int | None]] = []

        def others() -> None:
            other = zombie.taken_over()
            assert other.fence is not None
            other.replays.discard(STREAM, other.fence)
            left.append(begun(other))

        assert zombie.fence is not None
        with suppress(LogFenced), store.armed(number, others):
            zombie.replays.discard(STREAM, zombie.fence)
        for asked, keeps in left:
            assert keeps and current_id(zombie) == asked
            assert kept(zombie) == keeps

    every_operation(stopped)


def test_f105_of_operators_that_ask_at_any_moment_of_each_other_one_is_refused() -> None:
    def stopped(store: SleepyStore, number: int) -> None:
        flow = delivered(store)
        asked: list[Request] = []

        def ask() -> None:
            with suppress(ConfigError):
                asked.append(flow.ask(time_of(1)))

        with store.armed(number, ask):
            ask()
        assert [request.id for request in asked] == [current_id(flow)]

    every_operation(stopped)


def test_f105_operator_who_slept_while_replays_came_and_went_asks_behind_them() -> None:
    def stopped(store: SleepyStore, number: int) -> None:
        flow = delivered(store)
        flow.replay(time_of(1))

        def others() -> None:
            while flow.replays.current(STREAM) is not None:
                flow.serve()
            for _ in range(3):
                flow.replay(time_of(2))

        with store.armed(number, others):
            asked = flow.ask(time_of(1))
        if flow.replays.current(STREAM) is not None:
            assert current_id(flow) == asked.id
            flow.serve()
        assert flow.replays.outcome(asked) is not None

    every_operation(stopped)


def test_f105_replay_that_was_carried_out_is_not_asked_for_again_under_its_id() -> None:
    """Whoever follows a row of SQL may have been stopped since it took the id."""
    flow = delivered(SleepyStore())
    asked = flow.ask(time_of(1))
    flow.replays.ask(asked)
    flow.serve()
    flow.replays.ask(asked)
    assert flow.replays.current(STREAM) is None


def test_replay_is_over_whatever_the_clocks_of_those_said_who_asked() -> None:
    flow = delivered(SleepyStore())
    ids = []
    for number in range(25):
        # Each clock is a day behind the last one.
        now = datetime.now(UTC) - timedelta(days=number)
        request = Request.new(STREAM, 1, 2, now=now)
        flow.replays.ask(request)
        assert flow.serve().id == request.id
        assert flow.replays.current(STREAM) is None
        ids.append(request.id)
    last = flow.replays.last(STREAM)
    assert last is not None and last.id == ids[-1]
    assert len(flow.store.list(Keys(STREAM).done)) == 20
    assert len(flow.store.list(Keys(STREAM).requests)) == 1


def test_f093_log_that_a_dead_process_has_kept_for_a_replay_that_is_over_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(_: int) -> NoReturn:
        raise Killed

    flow = delivered(SleepyStore())
    flow.ask(time_of(1))
    with met_at("replay.after_outcome", die, monkeypatch), pytest.raises(Killed):
        flow.serve()
    assert flow.replays.current(STREAM) is None and kept(flow)
    assert flow.fence is not None
    flow.lookout().step(0.0, flow.fence)
    assert kept(flow) is None


def test_f082_what_became_of_a_replay_is_for_its_successor_to_say() -> None:
    zombie = delivered(SleepyStore())
    zombie.ask(time_of(1))
    request = zombie.replays.current(STREAM)
    assert request is not None and zombie.fence is not None
    other = zombie.taken_over()
    failed = outcome_of(request, "failed", 0, "the sink was away")
    with pytest.raises(LogFenced):
        zombie.replays.finish(request, failed, zombie.fence)
    assert other.serve().state == "done"
