"""A base that was asked for stays asked for until one that is new enough is there."""

from __future__ import annotations

from tailrace.log.wanted import WantedBase, want_base, wanted_bases
from tailrace.model import Lsn
from tailrace.storage import MemoryStore


def test_a_table_is_asked_for_until_a_base_at_or_after_the_mark_is_there() -> None:
    store = MemoryStore()
    attached = WantedBase(7, Lsn(200), "partition a was attached")
    want_base(store, attached)
    assert wanted_bases(store, {}) == {7: attached}
    assert wanted_bases(store, {7: Lsn(199), 8: Lsn(500)}) == {7: attached}
    assert wanted_bases(store, {7: Lsn(200)}) == {}


def test_the_highest_mark_of_a_table_counts_whatever_came_last() -> None:
    store = MemoryStore()
    for position in (300, 100, 200):
        want_base(store, WantedBase(7, Lsn(position), f"at {position}"))
    want_base(store, WantedBase(12, Lsn(100), "another table"))
    wanted = wanted_bases(store, {7: Lsn(250)})
    assert {oid: each.reason for oid, each in wanted.items()} == {
        7: "at 300",
        12: "another table",
    }


def test_asking_twice_is_asking_once() -> None:
    store = MemoryStore()
    for _ in range(2):
        want_base(store, WantedBase(7, Lsn(100), "once"))
    assert [each.reason for each in wanted_bases(store, {}).values()] == ["once"]
