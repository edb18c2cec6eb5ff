"""Merging: fewer objects, the same log, at every moment and after every crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import SegmentCorrupt
from tailrace.log import Kind, Tip, Writer, layout, segment
from tailrace.log.marks import read_frontiers
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.verify import verify
from tailrace.model import Lsn, Relation
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.faulty_store import Killed, dying
from tests.log.making import (
    SOURCE,
    START,
    Clock,
    Wal,
    begin,
    begin_writer,
    decoded,
    put_in_parts,
    read,
    shape,
    writer,
)

T = shape()
POLICY = MergePolicy(target_bytes=1 << 20, segment_count_min=3, grace_s=10.0)


class Merging:
    """A log on a clock of its own, and its merger."""

    def __init__(self, policy: MergePolicy = POLICY) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.writer = begin_writer(self.store)
        self.wal = Wal()
        self.merger = Merger(self.store, writer_id="merger", policy=policy)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.writer.append(self.wal.rows(T, 2))

    def step(self, wait_s: float = 20.0) -> int:
        self.clock.now_s += wait_s
        return self.merger.step(self.clock.now_s)

    def names(self, level: str) -> list[str]:
        return [entry.key for entry in self.store.list(level) if entry.key != layout.GENESIS]

    def is_sound(self) -> bool:
        return list(verify(self.store))[-1].problems == [] and read(self.store) == self.wal.changes


def test_small_segments_become_one_and_go_after_the_grace_time() -> None:
    log = Merging()
    log.append(5)
    assert log.step() == 5
    assert len(log.names(layout.MERGED)) == 1 and len(log.names(layout.SEGMENTS)) == 5
    assert log.is_sound()
    assert log.step(5.0) == 0
    assert len(log.names(layout.SEGMENTS)) == 5
    assert log.step() == 0
    assert log.names(layout.SEGMENTS) == []
    assert log.names(layout.MERGED) == [layout.merged_key(START, log.wal.end)]
    assert read_frontiers(log.store).merged == log.wal.end
    assert log.is_sound()


def test_a_merged_header_is_that_of_all_its_transactions() -> None:
    log = Merging()
    log.append(3)
    log.writer.append(log.wal.transaction(wire.message()))
    log.step()
    merged = segment.read(log.store, log.names(layout.MERGED)[0]).header
    parts = [segment.read_header(log.store, key) for key in log.names(layout.SEGMENTS)]
    assert merged.kind is Kind.MERGED and merged.writer == "merger"
    assert (merged.start, merged.end) == (START, log.wal.end)
    assert merged.change_count == sum(part.change_count for part in parts) == 6
    assert merged.transaction_count == 4
    assert (merged.first, merged.last) == (parts[0].first, parts[2].last)
    assert merged.commit_ts_us_min == parts[0].commit_ts_us_min
    assert merged.commit_ts_us_max == parts[3].commit_ts_us_max
    assert [(use.relation, use.change_count) for use in merged.relations] == [(T, 6)]


def test_young_segments_and_short_runs_are_left_alone() -> None:
    log = Merging()
    log.append(2)
    assert log.step() == 0
    log.append(1)
    assert log.step(1.0) == 0
    assert log.step() == 3


def test_segments_with_parts_and_large_ones_stay_as_they_are() -> None:
    log = Merging(replace(POLICY, target_bytes=2000))
    log.append(3)
    put_in_parts(log.writer, log.wal.rows(T, 4), 3)
    log.append(3)
    log.writer.append(log.wal.rows(T, 60))
    log.append(3)
    assert [log.step(), log.step(), log.step(), log.step()] == [3, 3, 3, 0]
    assert len(log.names(layout.SEGMENTS)) == 2 and len(log.names(layout.PARTS)) == 2
    assert log.is_sound()
    assert len(decoded(log.store)) == len(log.wal.changes)


def test_a_run_ends_at_the_target_size() -> None:
    size = Wal().rows(T, 2).data_bytes
    log = Merging(replace(POLICY, target_bytes=size * 4 + 20))
    log.append(10)
    assert [log.step() for _ in range(4)] == [4, 4, 0, 0]
    assert len(log.names(layout.SEGMENTS)) == 2
    assert log.is_sound()


def test_shapes_are_kept_across_a_merge() -> None:
    log = Merging()
    wider = shape(T.oid, "id", "note")
    other = shape(16_401)
    log.append()
    log.writer.append(log.wal.rows(other))
    log.writer.append(log.wal.transaction(log.wal.row(T), wire.relation(wider), log.wal.row(wider)))
    log.writer.append(log.wal.transaction(log.wal.row(wider), log.wal.row(other)))
    log.writer.append(log.wal.rows(T))
    before = decoded(log.store)
    log.step()
    log.step()
    assert log.names(layout.SEGMENTS) == []
    assert decoded(log.store) == before
    merged = segment.read(log.store, log.names(layout.MERGED)[0]).header
    assert [(use.relation, use.change_count) for use in merged.relations] == [
        (T, 3),
        (wider, 2),
        (T, 1),
        (other, 2),
    ]
    assert log.is_sound()


def test_a_shape_announced_before_its_first_row_is_kept_across_a_merge() -> None:
    """Its Relation frame lies in a segment in which no row uses it."""
    log = Merging()
    wider = shape(T.oid, "id", "note")
    log.append()
    log.writer.append(log.wal.transaction(wire.relation(wider)))
    log.writer.append(log.wal.transaction(log.wal.row(wider)))
    before = decoded(log.store)
    log.step()
    log.step()
    assert log.names(layout.SEGMENTS) == []
    assert decoded(log.store) == before
    assert log.is_sound()


def test_a_merged_segment_decodes_alone_with_shapes_from_before_it() -> None:
    log = Merging()
    wal, to = log.wal, log.writer
    put_in_parts(to, wal.rows(T, 2), 2)  # never merged, so the Relation frame stays outside
    for _ in range(3):
        to.append(wal.rows(T, announce=False))
    log.step()
    log.step()
    merged = segment.read(log.store, log.names(layout.MERGED)[0]).header
    assert [(use.relation, use.initial) for use in merged.relations] == [(T, True)]
    assert len(decoded(log.store)) == 5


def test_what_the_catalog_said_at_two_times_is_never_mixed() -> None:
    """The same Relation frame, described differently by two writers: a header has room for one."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    tip, wal = begin(store), Wal()

    def append(key: tuple[str, ...]) -> None:
        nonlocal tip
        to = Writer(
            store,
            tip,
            writer_id=f"w{tip.position}".replace("/", ""),
            describe=lambda relations: [replace(each, key=key) for each in relations],
        )
        for _ in range(3):
            to.append(wal.rows(T))
        tip = Tip(SOURCE, to.segment_end, to.position)

    append(("id",))
    append(("other",))
    merger = Merger(store, writer_id="m", policy=POLICY)
    clock.now_s += 20
    assert [merger.step(clock.now_s), merger.step(clock.now_s)] == [3, 3]

    def keys() -> list[Relation]:
        merged = [entry.key for entry in store.list(layout.MERGED)]
        return [u.relation for key in merged for u in segment.read(store, key).header.relations]

    assert [relation.key for relation in keys()] == [("id",), ("other",)]
    assert read(store) == wal.changes


@pytest.mark.parametrize("effect", range(9))
def test_f081_a_merger_killed_anywhere_leaves_the_log_as_it_was(effect: int) -> None:
    log = Merging()
    log.append(4)
    for _ in range(2):
        dead = Merger(dying(log.store, effect), writer_id="dead", policy=POLICY)
        log.clock.now_s += 20
        try:
            dead.step(log.clock.now_s)
        except Killed:
            assert log.is_sound()
    log.step()
    log.step()
    assert log.is_sound()
    assert log.names(layout.SEGMENTS) == []
    log.append(1)
    assert log.is_sound()


def test_small_segments_stay_if_the_merged_one_is_damaged() -> None:
    log = Merging()
    log.append(4)
    log.step()
    key = log.names(layout.MERGED)[0]
    data = log.store.get(key)
    log.store.delete([key])
    log.store.put_new(key, data[:-100])
    with pytest.raises(SegmentCorrupt):
        log.step()
    assert len(log.names(layout.SEGMENTS)) == 4
    assert read(log.store) == log.wal.changes


def test_a_damaged_segment_is_never_merged() -> None:
    log = Merging()
    log.append(4)
    key = log.names(layout.SEGMENTS)[1]
    data = log.store.get(key)
    log.store.delete([key])
    log.store.put_new(key, data[: len(data) * 2 // 3])
    with pytest.raises(SegmentCorrupt):
        log.step()
    assert log.names(layout.MERGED) == []


def test_headers_are_read_once(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    for _ in range(2):
        to.append(wal.rows(T))
    merger = Merger(store, writer_id="m", policy=replace(POLICY, grace_s=0.0))
    assert merger.step(float(1 << 40)) == 0
    key = layout.segment_key(START)
    data = store.get(key)
    store.delete([key])
    store.put_new(key, data[:1])
    assert merger.step(float(1 << 40)) == 0


def test_a_zombies_merge_of_the_same_run_does_no_harm() -> None:
    log = Merging()
    log.append(4)
    other = Merger(log.store, writer_id="zombie", policy=POLICY)
    log.clock.now_s += 20
    assert other.step(log.clock.now_s) == 4
    log.append(4)
    assert [log.step(), log.step()] == [4, 0]
    other.step(log.clock.now_s)
    assert log.is_sound()
    assert [layout.range_of(key) for key in log.names(layout.MERGED)] == [
        (START, Lsn(START + 400)),
        (Lsn(START + 400), Lsn(START + 800)),
    ]
    to = writer(log.store, Tip(SOURCE, log.wal.end, log.wal.end), "next")
    to.append(Frames.concat([log.wal.rows(T), log.wal.rows(T)]))
    assert log.is_sound()
