"""A base that was asked for stays asked for until one that is new enough is read from Postgres."""

from __future__ import annotations

from dataclasses import replace

from tailrace.log import Base, BaseOrigin
from tailrace.log.bases import newest_positions, put_base
from tailrace.log.gone import note_gone
from tailrace.log.wanted import SLOT_LOST, WantedBase, lost_with_slot, want_base, wanted_bases
from tailrace.model import Lsn
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.faulty_store import WatchedStore
from tests.log.making import SOURCE, shape


def base(oid: int, position: int) -> Base:
    table = shape(oid, "id", "note")
    return Base(SOURCE, table, wire.relation(table), Lsn(position), 0, BaseOrigin.SNAPSHOT)


def wanted(store: Store) -> dict[int, str]:
    found = wanted_bases(store, newest_positions(store))
    assert all(each.oid == oid for oid, each in found.items())
    return {oid: each.reason for oid, each in found.items()}


def test_a_table_is_asked_for_until_a_base_at_or_after_the_mark_is_there() -> None:
    store = MemoryStore()
    want_base(store, WantedBase(7, Lsn(200), "attached"))
    assert wanted(store) == {7: "attached"}
    put_base(store, base(7, 199))
    put_base(store, base(8, 500))
    assert wanted(store) == {7: "attached"}
    put_base(store, base(7, 200))
    assert wanted(store) == {}


def test_a_mark_that_is_raised_while_somebody_looks_is_not_overlooked() -> None:
    store = MemoryStore()
    want_base(store, WantedBase(7, Lsn(200), "attached"))
    higher = [Lsn(300), Lsn(400)]

    def raise_it(what: str, key: str) -> None:
        while what == "get" and higher:
            want_base(store, WantedBase(7, higher.pop(0), "detached"))

    assert wanted(WatchedStore(store, before=raise_it)) == {7: "detached"}


def test_a_base_that_was_folded_from_one_before_the_mark_does_not_answer_it() -> None:
    store = MemoryStore()
    put_base(store, base(7, 100))
    want_base(store, WantedBase(7, Lsn(200), "attached"))
    folded = replace(base(7, 300), origin=BaseOrigin.COMPACTION, folded_from=Lsn(100))
    put_base(store, folded)
    assert wanted(store) == {7: "attached"}
    put_base(store, base(7, 310))
    assert wanted(store) == {}


def test_the_highest_mark_of_a_table_counts_whatever_came_last() -> None:
    store = MemoryStore()
    put_base(store, base(7, 250))
    for position in (300, 100, 200):
        want_base(store, WantedBase(7, Lsn(position), f"at {position}"))
    want_base(store, WantedBase(12, Lsn(100), "another table"))
    assert wanted(store) == {7: "at 300", 12: "another table"}


def test_f077_a_lost_slot_stays_the_reason_until_a_base_answers_it() -> None:
    store = MemoryStore()
    put_base(store, base(7, 100))
    want_base(store, WantedBase(7, Lsn(200), SLOT_LOST))
    want_base(store, WantedBase(8, Lsn(200), SLOT_LOST))
    want_base(store, WantedBase(7, Lsn(220), "attached"))
    assert wanted(store) == {7: SLOT_LOST, 8: SLOT_LOST}
    put_base(store, base(7, 230))
    assert wanted(store) == {8: SLOT_LOST}
    assert lost_with_slot(store) == {7: 220, 8: 200}, "a stream may not have the base yet"
    want_base(store, WantedBase(7, Lsn(300), "attached"))
    note_gone(store, {8})
    assert wanted(store)[7] == "attached" and not lost_with_slot(store)


def test_asking_twice_is_asking_once() -> None:
    store = MemoryStore()
    for _ in range(2):
        want_base(store, WantedBase(7, Lsn(100), "once"))
    assert wanted(store) == {7: "once"}
