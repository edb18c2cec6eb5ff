"""How many queries of a pipeline begin at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.streams.starts import ASKS_S, PATIENCE_S, Starts


@dataclass
class Beginning:
    """A query as its pipeline sees it."""

    isActive: bool = True
    status: dict[str, object] = field(default_factory=lambda: {"message": "Initializing sources"})


def test_a_query_begins_when_the_one_before_it_is_up_or_has_ended_or_is_too_late() -> None:
    starts, queries = Starts(at_once=1), [Beginning() for _ in range(3)]
    assert starts.may_begin("a", 0.0)
    starts.begun(queries[0], 0.0)
    queries[0].status["message"] = "Getting offsets from PythonMicroBatchStream"
    assert not starts.may_begin("b", 1.0)
    queries[0].status["message"] = "Waiting for data to arrive"
    assert starts.may_begin("b", 1.0)
    starts.begun(queries[1], 1.0)
    assert not starts.may_begin("c", 2.0)
    queries[1].isActive = False
    assert starts.may_begin("c", 2.0)
    starts.begun(queries[2], 2.0)
    assert not starts.may_begin("d", 2.0 + PATIENCE_S / 2)
    assert starts.may_begin("d", 2.0 + PATIENCE_S)


def test_streams_begin_in_the_order_in_which_they_came_and_nobody_waits_for_one_that_left() -> None:
    starts, query = Starts(at_once=1), Beginning()
    starts.begun(query, 0.0)
    for name in ("left", "early", "late"):
        assert not starts.may_begin(name, 0.0)
    query.isActive = False
    assert not starts.may_begin("late", ASKS_S - 1)
    assert not starts.may_begin("early", ASKS_S - 1)
    assert starts.may_begin("early", ASKS_S)
    starts.begun(Beginning(), ASKS_S)
    assert not starts.may_begin("late", ASKS_S)


def test_a_stream_that_does_not_begin_when_it_may_holds_up_nobody() -> None:
    """It has no table yet, for instance, and looks for one again and again."""
    starts = Starts(at_once=1)
    for now in range(4):
        assert starts.may_begin("idle", float(now))
        assert starts.may_begin("other", float(now))
