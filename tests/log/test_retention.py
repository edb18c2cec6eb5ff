"""Retention: the oldest goes first, nothing that a reader needs, and never without a word."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tailrace.errors import OffsetOutOfRange
from tailrace.log import Reader, layout
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.retention import (
    ORPHAN_AGE_S,
    RetentionPolicy,
    put_reader_position,
    reader_positions,
    retain,
)
from tailrace.log.verify import verify
from tailrace.model import Lsn, Offset
from tailrace.storage import MemoryStore, Store
from tests.log.faulty_store import Killed, WatchedStore, dying
from tests.log.making import BEGINNING, START, Clock, Wal, begin_writer, put_in_parts, read, shape

T = shape()


class Retaining:
    """A log of one segment a minute."""

    def __init__(self, count: int = 5) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.writer = begin_writer(self.store)
        self.wal = Wal()
        for _ in range(count):
            self.append()

    def append(self) -> None:
        self.clock.now_s += 60
        self.writer.append(self.wal.rows(T, 2))

    def retain(self, policy: RetentionPolicy) -> int:
        return retain(self.store, policy, now_s=self.clock.now_s) - START

    def sizes(self) -> list[int]:
        entries = self.store.list(layout.SEGMENTS)
        return [entry.size for entry in entries if entry.key != layout.GENESIS]

    def is_sound(self) -> bool:
        return list(verify(self.store))[-1].problems == []


def test_without_limits_everything_stays() -> None:
    log = Retaining()
    assert log.retain(RetentionPolicy()) == 0
    assert read(log.store) == log.wal.changes


def test_old_segments_go_by_age() -> None:
    log = Retaining()
    assert log.retain(RetentionPolicy(age_s=150)) == 200
    assert Reader(log.store).begin() == START + 200
    assert read(log.store, Offset.whole(START + 200)) == log.wal.changes[4:]
    assert log.is_sound()


def test_old_segments_go_by_stored_bytes() -> None:
    log = Retaining()
    sizes = log.sizes()
    assert log.retain(RetentionPolicy(bytes_max=sum(sizes) - 1)) == 100
    assert log.retain(RetentionPolicy(bytes_max=sum(sizes[3:]))) == 300
    assert log.is_sound()


def test_the_last_segment_and_the_genesis_always_stay() -> None:
    log = Retaining()
    assert log.retain(RetentionPolicy(age_s=0, bytes_max=0, hard_bytes_max=0)) == 400
    keys = [entry.key for entry in log.store.list(layout.SEGMENTS)]
    assert keys == [layout.GENESIS, layout.segment_key(START + 400)]
    assert Retaining(0).retain(RetentionPolicy(age_s=0)) == 0
    log.append()
    assert log.is_sound()


def test_f093_a_reader_that_falls_off_is_told() -> None:
    log = Retaining()
    log.retain(RetentionPolicy(age_s=150))
    with pytest.raises(OffsetOutOfRange) as caught:
        read(log.store, BEGINNING)
    assert "start from where the log begins" in caught.value.hint


def test_f093_nothing_goes_that_the_slowest_reader_needs() -> None:
    log = Retaining()
    everything = RetentionPolicy(age_s=0, bytes_max=0)
    put_reader_position(log.store, "slow", Lsn(START + 150))
    put_reader_position(log.store, "fast", Lsn(START + 400))
    assert log.retain(everything) == 100
    put_reader_position(log.store, "slow", Lsn(START + 300))
    assert log.retain(everything) == 300
    log.store.delete(entry.key for entry in log.store.list("readers/slow/"))
    assert log.retain(everything) == 400
    assert log.is_sound()


def test_f014_a_hard_limit_wins_over_a_slow_reader() -> None:
    log = Retaining()
    put_reader_position(log.store, "dead", START)
    sizes = log.sizes()
    policy = RetentionPolicy(bytes_max=0, hard_bytes_max=sum(sizes[2:]))
    assert log.retain(policy) == 200
    with pytest.raises(OffsetOutOfRange):
        list(Reader(log.store).walk(BEGINNING))


def test_a_readers_position_never_moves_back(store: Store) -> None:
    for position in (5, 9, 7):
        put_reader_position(store, "lake", Lsn(position))
    put_reader_position(store, "other", Lsn(3))
    assert reader_positions(store) == {"lake": 9, "other": 3}


def test_f093_a_reader_that_moves_just_now_is_never_overlooked() -> None:
    """A listing shows its old position or its new one, however it falls between put and delete."""
    store = MemoryStore()
    put_reader_position(store, "slow", Lsn(5))
    seen = []

    def look(what: str, key: str) -> None:
        if what == "delete":
            seen.append(reader_positions(store))

    watched = WatchedStore(store, before=look, after=look)
    for position in range(6, 12):
        # What a listing in two halves would show, if the put fell between them.
        before = {entry.key for entry in store.list("")}
        put_reader_position(watched, "slow", Lsn(position))
        after = {entry.key for entry in store.list("")}
        assert before & after
    assert seen and all(positions["slow"] >= 5 for positions in seen)


def test_parts_go_with_their_segment() -> None:
    log = Retaining(1)
    put_in_parts(log.writer, log.wal.rows(T, 5), 3)
    log.clock.now_s += 1000
    log.append()
    policy = RetentionPolicy(age_s=500)
    assert log.retain(policy) == 200
    assert log.store.list(layout.PARTS) == []
    assert log.is_sound()


def test_parts_count_as_bytes_of_their_segment() -> None:
    log = Retaining(0)
    put_in_parts(log.writer, log.wal.rows(T, 5), 3)
    log.append()
    size = sum(entry.size for entry in log.store.list(layout.PARTS))
    assert log.retain(RetentionPolicy(bytes_max=sum(log.sizes()) + size)) == 0
    assert log.retain(RetentionPolicy(bytes_max=sum(log.sizes()) + size - 1)) == 100


def test_orphan_parts_go_when_their_transaction_is_in_the_log() -> None:
    log = Retaining(1)
    frames = Wal(log.wal.end).rows(T, 4)
    log.writer.put_part(frames.slice(0, 3))  # a writer that dies here
    log.writer.discard_parts()
    log.clock.now_s += ORPHAN_AGE_S + 1
    keep = RetentionPolicy()
    log.retain(keep)
    assert len(log.store.list(layout.PARTS)) == 1, "its segment may still come"
    put_in_parts(log.writer, log.wal.rows(T, 4), 3)
    log.retain(keep)
    assert len(log.store.list(layout.PARTS)) == 2
    log.clock.now_s += ORPHAN_AGE_S + 1
    log.retain(keep)
    assert len(log.store.list(layout.PARTS)) == 2
    assert read(log.store) == log.wal.changes and log.is_sound()


def test_orphan_parts_of_a_past_that_was_merged_go() -> None:
    log = Retaining(1)
    log.writer.put_part(Wal(log.wal.end).rows(T, 4).slice(0, 3))
    log.writer.discard_parts()
    for _ in range(3):
        log.append()
    merger = Merger(log.store, writer_id="m", policy=MergePolicy(1 << 20, 2, 1.0))
    for _ in range(2):
        log.clock.now_s += ORPHAN_AGE_S
        merger.step(log.clock.now_s)
    log.retain(RetentionPolicy())
    assert log.store.list(layout.PARTS) == []
    assert log.is_sound()


def test_young_orphans_stay() -> None:
    log = Retaining(0)
    log.writer.put_part(Wal().rows(T, 4).slice(0, 3))
    log.writer.discard_parts()
    log.append()
    log.retain(RetentionPolicy())
    assert len(log.store.list(layout.PARTS)) == 1


def test_merged_segments_are_dropped_whole() -> None:
    log = Retaining(6)
    merger = Merger(log.store, writer_id="m", policy=MergePolicy(300, 2, 1.0))
    for _ in range(4):
        log.clock.now_s += 10
        merger.step(log.clock.now_s)
    starts = [layout.position_of(entry.key) - START for entry in log.store.list(layout.MERGED)]
    assert len(starts) > 1
    put_reader_position(log.store, "slow", Lsn(START + starts[1] + 1))
    assert log.retain(RetentionPolicy(bytes_max=0)) == starts[1]
    assert read(log.store, Offset.whole(START + starts[1])) == [
        change for change in log.wal.changes if change[0].commit_lsn > START + starts[1]
    ]
    assert log.is_sound()


def test_a_merge_across_the_new_beginning_reads_right() -> None:
    """A merger left behind puts a segment that begins before what retention has dropped."""
    log = Retaining(4)
    copy = MemoryStore(clock=log.clock)
    for entry in log.store.list(""):
        copy.put_new(entry.key, log.store.get(entry.key))
    log.clock.now_s += 10
    Merger(copy, writer_id="m", policy=MergePolicy(1 << 20, 2, 1.0)).step(log.clock.now_s)
    log.retain(RetentionPolicy(age_s=100))
    begin = Reader(log.store).begin()
    assert begin == START + 200
    merged = copy.list(layout.MERGED)[0].key
    log.store.put_new(merged, copy.get(merged))
    for _ in range(2):
        log.clock.now_s += 10
        Merger(log.store, writer_id="m", policy=MergePolicy(1 << 20, 2, 1.0)).step(log.clock.now_s)
    assert [entry.key for entry in log.store.list(layout.SEGMENTS)] == [layout.GENESIS]
    assert read(log.store, Offset.whole(begin)) == log.wal.changes[4:]
    with pytest.raises(OffsetOutOfRange):
        read(log.store, BEGINNING)
    assert log.retain(RetentionPolicy()) == 200
    assert log.is_sound()


@pytest.mark.parametrize("effect", range(6))
def test_f081_retention_killed_anywhere_leaves_a_sound_log(effect: int) -> None:
    log = Retaining()
    with suppress(Killed):
        retain(dying(log.store, effect), RetentionPolicy(age_s=150), now_s=log.clock.now_s)
    begin = Reader(log.store).begin()
    assert begin in (START, START + 200)
    assert log.is_sound()
    assert log.retain(RetentionPolicy(age_s=150)) == 200
    assert len(log.store.list(layout.SEGMENTS)) == 4
    assert log.is_sound()
