"""How many queries of a pipeline begin at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.streams.starts import PATIENCE_S, Starts


@dataclass
class Beginning:
    """A query as its pipeline sees it."""

    isActive: bool = True
    status: dict[str, object] = field(default_factory=lambda: {"message": "Initializing sources"})


def test_a_query_begins_when_the_one_before_it_is_up_or_has_ended_or_is_too_late() -> None:
    starts, queries = Starts(at_once=1), [Beginning() for _ in range(3)]
    assert starts.has_room(0.0)
    starts.begun(queries[0], 0.0)
    queries[0].status["message"] = "Getting offsets from PythonMicroBatchStream"
    assert not starts.has_room(1.0)
    queries[0].status["message"] = "Waiting for data to arrive"
    assert starts.has_room(1.0)
    starts.begun(queries[1], 1.0)
    assert not starts.has_room(2.0)
    queries[1].isActive = False
    assert starts.has_room(2.0)
    starts.begun(queries[2], 2.0)
    assert not starts.has_room(2.0 + PATIENCE_S / 2)
    assert starts.has_room(2.0 + PATIENCE_S)
