"""A replay whose node is stopped midway, and wakes when another has taken the stream over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tailrace.sinks import Sink, open_sink
from tailrace.storage import FileStore, Store
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay.keys import record_name
from tests.dying import met_at
from tests.server import Database
from tests.sinks.queue.servers import webhook
from tests.spark.made_log import MadeLog
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.test_replay import hook, lake, offsets
from tests.streams.test_replay_deaths import BATCH, BEGIN, CLEAR, history

CHANGES_MAX = 2


@dataclass(frozen=True)
class Place:
    """A sink; `state` has more whenever something was written to it. A queue that a zombie has
    handed a window to takes that.
    """

    open_sink: Callable[[str], Sink]
    state: Callable[[], list[object]]
    window: int = 0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return FileStore(tmp_path / "log")


@pytest.fixture(params=["upsert", "append", "postgres", "webhook"])
def place(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path, database: Database
) -> Iterator[Place]:
    """Each kind of sink that a replay treats differently, and each fence."""
    path, kind = tmp_path / "lake", request.param
    with ExitStack() as stack:
        if kind == "webhook":
            queue = stack.enter_context(webhook())
            yield Place(hook(queue, store), lambda: [*queue.received()], CHANGES_MAX)
        elif kind == "postgres":
            connection = stack.enter_context(database.connect())
            options = {"type": "postgres", "dsn": database.dsn}
            query = "SELECT DISTINCT xmin::text FROM public.orders ORDER BY 1"
            yield Place(
                lambda name: open_sink(options, stream=name),
                lambda: [*connection.execute(query)],
            )
        else:
            yield Place(
                lake(path, kind), lambda: [*DeltaTable(str(path / "public/orders")).history()]
            )


@pytest.mark.parametrize("step", [*BEGIN, *BATCH, *CLEAR[:-1]])
def test_f082_replay_of_a_zombie_delivers_no_more_and_moves_nothing(
    store: Store, place: Place, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MadeLog(store)
    table = history(log)
    zombie = Replayed(store, place.open_sink, changes_max=CHANGES_MAX).taken_over()
    zombie.go_on()
    zombie.ask(time_of(1))
    left = []

    def sleep(_: int) -> None:
        other = zombie.taken_over()
        if other.replays.current(STREAM) is not None:
            other.serve()
        log.commit(table, table.update(4, 4, "later", None))
        other.go_on()
        asked = other.ask(time_of(2))
        left.append((place.state(), StreamRecord(store, record_name(STREAM)).newest(), asked))

    with met_at(step, sleep, monkeypatch):
        zombie.serve()
    ((state, newest, asked),) = left
    more = [each for each in place.state() if each not in state]
    assert len(place.state()) - len(state) <= place.window and (place.window or not more)
    assert StreamRecord(store, record_name(STREAM)).newest() == newest
    assert zombie.replays.current(STREAM) == asked
    # Whoever has the stream goes on, with the next request as well.
    successor = zombie.taken_over()
    assert successor.serve().state == "done"


def test_f082_a_zombie_does_not_make_a_later_replay_begin_anew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MadeLog(store)
    history(log)
    path = tmp_path / "lake"
    zombie = Replayed(store, lake(path, "append"), changes_max=CHANGES_MAX).taken_over()
    zombie.go_on()
    zombie.ask(time_of(1))

    def die() -> None:
        if offsets(path, "replay") != first:
            raise SystemExit

    def sleep(_: int) -> None:
        other = zombie.taken_over()
        other.serve()
        first.extend(offsets(path, "replay"))
        other.ask(time_of(1))
        with pytest.raises(SystemExit):
            replace(other, before_batch=die).serve()

    first: list[tuple[int, int]] = []
    with met_at("replay.after_begin", sleep, monkeypatch):
        zombie.serve()
    assert zombie.taken_over().serve().state == "done"
    assert offsets(path, "replay") == sorted(first * 2)
