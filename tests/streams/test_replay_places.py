"""Replays to another place than the stream's own: one that nobody else has written to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.sinks import Sink, open_sink
from tests.log.faulty_store import Killed
from tests.server import Database
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.test_replay import lake


@pytest.fixture
def orders() -> Table:
    return Table()


@pytest.fixture(params=["delta", "postgres"])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, database: Database
) -> Callable[[str, str], Sink]:
    """Opens an upsert target by its name, for the stream of a name."""
    if request.param == "delta":
        return lambda place, name: lake(tmp_path / place)(name)
    options = {"type": "postgres", "dsn": database.dsn, "mode": "upsert"}
    return lambda place, name: open_sink({**options, "schema": place}, stream=name)


def test_f105_another_place_that_somebody_else_has_written_to_is_refused(
    log: MadeLog, orders: Table, places: Callable[[str, str], Sink]
) -> None:
    log.insert(orders, 1, 3)
    log.commit(orders, orders.update(1, 1, "now", None))
    flow = Replayed(log.store, lambda name: places("own", name), open_other_sink=places)
    flow.go_on()
    flow.ask(time_of(1), time_of(1), to_sink="own")
    refused = flow.serve()
    assert (refused.state, refused.change_count) == ("failed", 0)
    assert "public.orders" in refused.note and "leave out --to-sink" in refused.note
    flow.ask(time_of(1), to_sink="fresh")
    assert flow.serve().change_count == 4
    # What a later range has put there is newer than this one.
    flow.ask(time_of(1), time_of(1), to_sink="fresh")
    assert flow.serve().state == "failed"


def test_f081_another_place_that_the_same_replay_has_begun_is_gone_on_with(
    log: MadeLog, orders: Table, places: Callable[[str, str], Sink]
) -> None:
    log.insert(orders, 1, 6)
    flow = Replayed(
        log.store, lambda name: places("own", name), changes_max=2, open_other_sink=places
    )
    flow.go_on()
    flow.ask(time_of(1), to_sink="other")
    seen = []

    def die_once() -> None:
        seen.append(1)
        if len(seen) == 2:
            raise Killed

    flow.before_batch = die_once
    with pytest.raises(Killed):
        flow.serve()
    with closing(places("other", "")) as sink:
        assert sink.occupied([orders.relation]), "it had begun"
    outcome = flow.serve()
    assert (outcome.state, outcome.change_count) == ("done", 6)


def test_changes_of_several_replays_are_gathered_in_one_place_but_not_beside_a_streams(
    log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    log.insert(orders, 1, 3)
    log.insert(orders, 4, 2)

    def files(place: str, _: str) -> Sink:
        return open_sink({"type": "parquet", "path": str(tmp_path / place)})

    flow = Replayed(log.store, lambda name: files("own", name), open_other_sink=files)
    flow.go_on()
    for number, count in ((2, 2), (1, 3)):
        flow.ask(time_of(number), time_of(number), to_sink="other")
        assert flow.serve().change_count == count
    # A replay into its own target leaves a record as well.
    assert flow.replay(time_of(1)).state == "done"
    flow.ask(time_of(1), to_sink="own")
    assert "leave out --to-sink" in flow.serve().note


def test_f098_another_place_that_cannot_be_reached_ends_the_replay_with_the_reason(
    log: MadeLog, orders: Table, tmp_path: Path, database: Database
) -> None:
    def place(name: str, _: str) -> Sink:
        if name == "postgres":
            return open_sink({"type": "postgres", "dsn": f"{database.dsn} dbname=not_there"})
        return open_sink({"type": name, "path": str(tmp_path / "file/in/it")})

    (tmp_path / "file").write_text("in the way")
    log.insert(orders, 1, 3)
    flow = Replayed(log.store, lake(tmp_path / "own"), open_other_sink=place)
    flow.go_on()
    for name, reason in (("postgres", "not_there"), ("parquet", "a file stands where")):
        flow.ask(time_of(1), to_sink=name)
        outcome = flow.serve()
        assert (outcome.state, outcome.change_count) == ("failed", 0)
        assert reason in outcome.note and "by itself" not in outcome.note
        assert flow.replays.current(STREAM) is None
