"""Verifications by themselves: as often as asked, across restarts, and no error ends them."""

from __future__ import annotations

import threading

import pytest
from pyspark.errors import PySparkRuntimeError

from tailrace.errors import SourceError
from tailrace.model import Lsn
from tailrace.storage import MemoryStore
from tailrace.verify.result import StreamResult, TableResult
from tailrace.verify.schedule import RETRY_S, Plan, Schedule
from tailrace.verify.stored import last_result, put_result

DAY_S = 86_400.0


def _result(began_s: float, *unlike: str) -> StreamResult:
    tables = tuple(
        TableResult(name, 1, 1, name not in unlike, repaired_rows=2)
        for name in ("public.a", "public.b")
    )
    return StreamResult("lake", Lsn(16), began_s, 1.5, tables)


def test_the_last_result_is_kept_and_no_older_one() -> None:
    store = MemoryStore()
    assert last_result(store, "lake") is None
    put_result(store, _result(1000.5))
    put_result(store, _result(2000.25, "public.b"))
    found = last_result(store, "lake")
    assert found is not None and not found.equal
    assert (found.position, found.began_s, found.unlike) == (Lsn(16), 2000.25, ("public.b",))
    assert (found.table_count, found.repaired_rows) == (2, 4)
    assert len(store.list("")) == 1


def test_one_is_due_when_the_last_one_is_long_enough_ago() -> None:
    store, stop = MemoryStore(), threading.Event()
    now = [1_000_000.0]
    runs: list[float] = []

    def run() -> StreamResult:
        runs.append(now[0])
        return _result(now[0])

    for at in (0.0, 60.0, DAY_S - 1, DAY_S, DAY_S + 60, 3 * DAY_S):
        now[0] = 1_000_000.0 + at
        # Each time anew, as after a restart: what was done is in the store.
        Schedule(store, [Plan("lake", DAY_S, run)], stop).step(now[0])
    assert [at - 1_000_000.0 for at in runs] == [0.0, DAY_S, 3 * DAY_S]
    stop.set()
    Schedule(store, [Plan("lake", 0.0, run)], stop).step(now[0])
    assert len(runs) == 3


@pytest.mark.parametrize(
    "error", [SourceError("postgres is away", retry=True), PySparkRuntimeError("a worker died")]
)
def test_one_that_fails_is_tried_again_later_and_leaves_the_others_alone(error: Exception) -> None:
    store = MemoryStore()
    tries: list[str] = []

    def fail() -> StreamResult:
        tries.append("fail")
        raise error

    def run() -> StreamResult:
        tries.append("run")
        return _result(1000.0)

    plans = [Plan("broken", DAY_S, fail), Plan("lake", DAY_S, run)]
    schedule = Schedule(store, plans, threading.Event())
    for now in (1000.0, 1001.0, 1000.0 + RETRY_S):
        schedule.step(now)
    assert tries == ["fail", "run", "fail"]
