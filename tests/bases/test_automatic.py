"""Every table gets its base in the end: what fails is tried again, and nothing ends the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import cast

import pytest
from pyspark.errors import PySparkRuntimeError

from tailrace.bases import automatic
from tailrace.bases.automatic import PUT_OFF_S, PUT_OFF_S_MAX, AutomaticBases
from tailrace.bases.group import TableResult
from tailrace.bases.take import BaseTaker
from tailrace.errors import SourceError
from tailrace.postgres.quote import SourceNames
from tailrace.storage import MemoryStore
from tests.log import making

GOOD, BAD = 1, 2


class Source:
    """Two tables in want, one of which cannot be read until it is cured."""

    def __init__(self) -> None:
        self.waiting = [GOOD, BAD]
        self.is_cured = False
        self.failures: list[Exception] = []
        self.taken: list[list[int]] = []
        self.has_taken = threading.Event()
        self.now_s = 0.0

    def take(
        self, oids: Sequence[int], *, still_wanted: Callable[[], Collection[int]]
    ) -> list[TableResult]:
        assert set(still_wanted()) >= set(oids)
        self.taken.append(list(oids))
        if self.failures:
            raise self.failures.pop()
        done = [oid for oid in oids if oid == GOOD or self.is_cured]
        self.waiting = [oid for oid in self.waiting if oid not in done]
        self.has_taken.set()
        error = SourceError("permission denied")
        return [TableResult(oid, str(oid), error=None if oid in done else error) for oid in oids]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    made = Source()
    monkeypatch.setattr(automatic, "tables_in_want", lambda *_: list(made.waiting))
    return made


@pytest.fixture
def bases(source: Source) -> AutomaticBases:
    store = MemoryStore()
    making.begin_writer(store)
    return AutomaticBases(
        store,
        SourceNames.of("app"),
        dsn=lambda: "",
        taker=lambda _dsn, _stop: cast(BaseTaker, source),
        clock=lambda: source.now_s,
    )


def test_a_table_that_cannot_be_read_is_tried_again_after_longer_and_longer_waits(
    bases: AutomaticBases, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []
    for _ in range(2_000):
        before = len(source.taken)
        bases.turn()
        tries += [source.now_s] * (len(source.taken) - before)
        source.now_s += 10
    assert source.taken[0] == [GOOD, BAD]
    assert all(oids == [BAD] for oids in source.taken[1:])
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert PUT_OFF_S / 2 <= waits[0] <= PUT_OFF_S + 10
    assert PUT_OFF_S_MAX / 2 <= waits[-1] <= PUT_OFF_S_MAX + 10
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    source.is_cured = True
    source.now_s += PUT_OFF_S_MAX
    bases.turn()
    assert source.waiting == []


@pytest.mark.parametrize(
    "failure",
    [
        SourceError("postgres is away"),
        PySparkRuntimeError("a worker died"),
        ValueError("nobody has thought of this"),
    ],
)
def test_no_failure_ends_the_thread(
    bases: AutomaticBases, source: Source, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(automatic, "AFTER_FAILURE_S", 0.01)
    source.failures = [failure]
    with bases:
        assert source.has_taken.wait(30.0)
    assert len(source.taken) >= 2
