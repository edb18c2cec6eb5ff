"""Of two pipelines that deliver a stream, the one that came later counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.errors import LogFenced
from tailrace.log.epochs import Fence, newest_fence, take_epoch
from tailrace.storage import MemoryStore, Store
from tailrace.storage.store import Entries


def test_f082_whoever_takes_a_stream_over_fences_the_one_before(store: Store) -> None:
    first = take_epoch(store, "lake", node="a")
    first.check()
    take_epoch(store, "other", node="b").check()
    first.check()
    second = take_epoch(store, "lake", node="b")
    second.check()
    with pytest.raises(LogFenced, match="another pipeline has taken stream lake over"):
        first.check()
    assert newest_fence(store, "lake") == second
    assert newest_fence(store, "lake.replay") == second


def test_f082_a_zombie_is_fenced_however_long_ago_it_was_overtaken(store: Store) -> None:
    zombie = take_epoch(store, "lake", node="a")
    for _ in range(5):
        newest = take_epoch(store, "lake", node="b")
    assert newest.epoch == 6
    with pytest.raises(LogFenced):
        zombie.check()


def test_of_many_that_take_a_stream_at_once_each_gets_an_epoch_of_its_own(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda n: take_epoch(store, "lake", node=str(n)), range(16)))
    assert len({fence.epoch for fence in taken}) == 16
    assert newest_fence(store, "lake") == max(taken, key=lambda fence: fence.epoch)


class _Overtaken(MemoryStore):
    """Others take the stream over between its first look and its put."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[int] = []
        self._looks = 0

    def list(self, prefix: str, *, after: str = "") -> Entries:
        found = super().list(prefix, after=after)
        self._looks += 1
        if self._looks == 1:
            self.others = [take_epoch(self, "lake", node="b").epoch for _ in range(3)]
        return found


def test_f082_a_number_that_was_given_and_deleted_is_not_given_again() -> None:
    store = _Overtaken()
    assert take_epoch(store, "lake", node="a").epoch == 4
    assert store.others == [1, 2, 3]


def test_a_stream_that_nobody_has_taken_fences_nobody(store: Store) -> None:
    unled = newest_fence(store, "lake")
    assert unled == Fence(store, "lake", 0)
    take_epoch(store, "lake", node="a")
    unled.check()
