"""Lives of streams to a queue, each with redrives, deaths, stops and refusals at random: in the end
everything has come, and nothing older stands behind what is newer.

`SEEDS=0:100000` runs other seeds than the usual ones.
"""

from __future__ import annotations

import os
from functools import partial

import pytest

from tailrace.sinks.queue import slices
from tests.sinks.queue.simulation import Simulation

GROUPS = 8


@pytest.fixture(autouse=True)
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clock, by which the queue is asked for nothing that need not be; and one who serves."""
    monkeypatch.setattr("tailrace.sinks.queue.sink.CLOCKS_S", 0.0)
    monkeypatch.setattr("tailrace.sinks.queue.sink.REQUESTS_S", 1000.0)


def seeds() -> range:
    first, _, last = os.environ.get("SEEDS", "0:200").partition(":")
    return range(int(first), int(last))


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_f081_f097_everything_comes_in_order_whatever_is_refused_redriven_stopped_and_killed(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_count = (3, 7, slices.ROWS_AT_ONCE)[group % 3]
    cut = partial(slices.slices, row_count=row_count)
    monkeypatch.setattr("tailrace.sinks.queue.sink.slices", cut)
    for seed in seeds()[group::GROUPS]:
        try:
            Simulation(seed).run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
