"""Where a log ends after a stop, a crash or damage, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tailrace.errors import LogError, SegmentCorrupt, SegmentMissing
from tailrace.log import Progress, Reader, Tip, layout, recover_tip
from tailrace.log.layout import FrontierKind
from tailrace.log.marks import move_frontier
from tailrace.log.merge import MergePolicy, Merger
from tailrace.model import Lsn
from tailrace.storage import MemoryStore, Store
from tests.log.faulty_store import Killed, WatchedStore, dying
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


def _damage(store: Store, key: str, change: Callable[[bytes], bytes]) -> None:
    data = change(store.get(key))
    store.delete([key])
    store.put_new(key, data)


DAMAGES = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) * 2 // 3],
    "head only": lambda data: data[:40],
    "zeros": lambda data: bytes(len(data)),
    "flipped in the head": lambda data: data.replace(b'"transactions":1', b'"transactions":3', 1),
    "flipped at the end": lambda data: data[:-1] + b"2",
}


def _log(store: Store, count: int = 3) -> tuple[Wal, Lsn]:
    """A log of a few segments; its WAL, and the start of the last."""
    to, wal = begin_writer(store), Wal()
    for _ in range(count):
        to.append(wal.rows(T))
    return wal, Lsn(wal.end - 100)


def test_an_empty_store_has_no_tip(store: Store) -> None:
    assert recover_tip(store) is None
    with pytest.raises(LogError, match="no log"):
        Reader(store).tip()


def test_a_new_log_ends_where_it_begins(store: Store) -> None:
    begin(store)
    assert recover_tip(store) == Reader(store).tip() == Tip(SOURCE, START, START)


def test_the_tip_is_the_end_of_the_last_segment(store: Store) -> None:
    wal, _ = _log(store)
    assert recover_tip(store) == Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)


def test_the_tip_is_the_highest_progress_if_that_is_higher(store: Store) -> None:
    wal, _ = _log(store)
    to = writer(store, Tip(SOURCE, wal.end, wal.end))
    to.put_progress(Lsn(wal.end + 7))
    expected = Tip(SOURCE, wal.end, Lsn(wal.end + 7))
    assert recover_tip(store) == Reader(store).tip() == expected


def test_segments_after_the_newest_progress_are_found(store: Store) -> None:
    wal, _ = _log(store)
    to = writer(store, Tip(SOURCE, wal.end, wal.end))
    to.put_progress(Lsn(wal.end + 7))
    to.append(wal.rows(T))
    to.append(wal.rows(T))
    assert recover_tip(store) == Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_f089_a_torn_tail_is_put_aside(
    store: Store, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    wal, last = _log(store)
    _damage(store, layout.segment_key(last), damage)
    damaged = store.get(layout.segment_key(last))
    with caplog.at_level(logging.WARNING):
        assert recover_tip(store) == Tip(SOURCE, last, last)
    assert "torn tail put aside" in caplog.text
    assert store.get(layout.torn_key(0, layout.segment_key(last))) == damaged
    assert read(store) == wal.changes[:-1]
    again = Wal(last)
    writer(store, Tip(SOURCE, last, last), "next").append(again.rows(T))
    assert len(read(store)) == len(wal.changes)


def test_f089_a_tail_torn_twice_is_kept_twice(store: Store) -> None:
    _, last = _log(store)
    key = layout.segment_key(last)
    for number in range(2):
        store.delete([key])
        store.put_new(key, b"torn %d" % number)
        assert recover_tip(store) == Tip(SOURCE, last, last)
    assert [store.get(entry.key) for entry in store.list(layout.TORN)] == [b"torn 0", b"torn 1"]


def test_f089_an_idle_position_before_the_torn_tail_stands(store: Store) -> None:
    wal, _ = _log(store)
    end = wal.end
    to = writer(store, Tip(SOURCE, end, end))
    to.put_progress(Lsn(end + 50))
    to.append(wal.rows(T))
    _damage(store, layout.segment_key(end), DAMAGES["torn"])
    assert recover_tip(store) == Tip(SOURCE, end, Lsn(end + 50))


@pytest.mark.parametrize("damage", ["empty", "torn", "zeros"])
def test_f089_a_torn_part_makes_its_segment_a_torn_tail(store: Store, damage: str) -> None:
    wal, _ = _log(store)
    end = wal.end
    to = writer(store, Tip(SOURCE, end, end))
    header = put_in_parts(to, wal.rows(T, 4), 2, 4)
    _damage(store, header.parts[1].key, DAMAGES[damage])
    assert recover_tip(store) == Tip(SOURCE, end, end)


def test_f089_a_missing_part_makes_its_segment_a_torn_tail(store: Store) -> None:
    wal, _ = _log(store)
    end = wal.end
    header = put_in_parts(writer(store, Tip(SOURCE, end, end)), wal.rows(T, 4), 2, 4)
    store.delete([header.parts[0].key])
    assert recover_tip(store) == Tip(SOURCE, end, end)


@pytest.mark.parametrize("damage", ["empty", "head only", "zeros", "flipped in the head"])
def test_f089_damage_that_the_log_goes_on_after_is_refused(store: Store, damage: str) -> None:
    _, last = _log(store)
    _damage(store, layout.segment_key(last - 100), DAMAGES[damage])
    before = {entry.key for entry in store.list("")}
    with pytest.raises(SegmentCorrupt, match="goes on after it") as caught:
        recover_tip(store)
    assert "backup" in caught.value.hint
    assert {entry.key for entry in store.list("")} == before


def test_f089_frames_damaged_in_the_middle_are_found_by_who_reads_them(store: Store) -> None:
    wal, last = _log(store)
    _damage(store, layout.segment_key(last - 100), DAMAGES["torn"])
    assert recover_tip(store) == Tip(SOURCE, wal.end, wal.end)
    with pytest.raises(SegmentCorrupt):
        read(store)


def test_f089_a_missing_segment_that_the_log_goes_on_after_is_refused(store: Store) -> None:
    _, last = _log(store)
    store.delete([layout.segment_key(last - 100)])
    with pytest.raises(SegmentMissing, match="goes on after it"):
        recover_tip(store)
    with pytest.raises(SegmentMissing):
        Reader(store).tip()


def test_a_log_of_a_newer_format_is_left_alone(store: Store) -> None:
    _, last = _log(store)
    key = layout.segment_key(last)
    before = store.get(key)

    # What a newer version would write is tried in test_segment; here only that a plain LogError,
    # unlike damage, never makes recovery touch the log.
    def refuse(what: str, asked: str) -> None:
        if what == "get" and asked == key:
            raise LogError("the log has format 2, this version reads 1")

    with pytest.raises(LogError, match="format 2"):
        recover_tip(WatchedStore(store, before=refuse))
    assert store.get(key) == before


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"nonsense", b'{"position": 1}'])
def test_damaged_progress_is_refused(store: Store, text: bytes) -> None:
    _log(store)
    store.put_new(layout.progress_key(START + 5000), text)
    with pytest.raises(SegmentCorrupt, match="progress/"):
        recover_tip(store)


def test_every_flipped_byte_of_progress_is_found(store: Store) -> None:
    progress = Progress(SOURCE, Lsn(START + 5000), START)
    key, data = layout.progress_key(progress.position), progress.to_json()
    assert Progress.from_json(data, key=key) == progress
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(SegmentCorrupt):
                Progress.from_json(bytes(damaged), key=key)


def test_progress_under_another_name_is_refused(store: Store) -> None:
    progress = Progress(SOURCE, Lsn(START + 5000), START)
    with pytest.raises(SegmentCorrupt):
        Progress.from_json(progress.to_json(), key=layout.progress_key(START))


def _merged(store: MemoryStore, clock: Clock) -> None:
    merger = Merger(store, writer_id="m", policy=MergePolicy(segment_count_min=2, grace_s=1))
    for _ in range(2):
        clock.now_s += 10
        merger.step(clock.now_s)


def test_segments_merged_since_the_newest_progress_are_passed_over() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    to.put_progress(to.position)
    for _ in range(4):
        to.append(wal.rows(T))
    _merged(store, clock)
    assert [entry.key for entry in store.list(layout.SEGMENTS)] == [layout.GENESIS]
    assert recover_tip(store) == Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)
    to.append(wal.rows(T))
    assert recover_tip(store) == Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)
    assert read(store) == wal.changes


def test_a_merger_left_behind_cannot_shorten_what_is_recovered() -> None:
    """It merges and deletes at the worst moment: just when recovery looks for the first segment."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal, _ = _log(store, 4)
    merged = False

    def merge(what: str, key: str) -> None:
        nonlocal merged
        if what == "get" and key == layout.segment_key(START) and not merged:
            merged = True
            _merged(store, clock)

    assert recover_tip(WatchedStore(store, before=merge)) == Tip(SOURCE, wal.end, wal.end)
    assert merged


def test_a_frontier_ahead_of_progress_is_where_recovery_begins(store: Store) -> None:
    wal, _ = _log(store)
    move_frontier(store, FrontierKind.RETAINED, Lsn(wal.end - 100))
    store.delete([layout.segment_key(START), layout.segment_key(START + 100)])
    assert recover_tip(store) == Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)


@pytest.mark.parametrize("effect", range(8))
def test_f081_a_writer_killed_anywhere_leaves_a_log_that_goes_on(store: Store, effect: int) -> None:
    """Killed before its n-th put or delete; then a new one gets the rest of the WAL again."""
    tip = begin(store)
    wal = Wal()
    transactions = [wal.rows(T, 2), wal.rows(T, 5), wal.rows(T, 1)]
    ends = [START + 100, START + 200, START + 300]
    to = writer(dying(store, effect), tip, "first")
    try:
        to.append(transactions[0])
        to.put_progress(Lsn(START + 110))
        put_in_parts(to, transactions[1], 2, 4)
        to.put_progress(Lsn(START + 210))
        to.put_progress(Lsn(START + 220))
        to.append(transactions[2])
    except Killed:
        pass
    found = recover_tip(store)
    assert found is not None and found.position >= to.position
    again = writer(store, found, "second")
    for end, transaction in zip(ends, transactions, strict=True):
        if end > found.position:
            again.append(transaction)
    assert read(store) == wal.changes
    assert len(decoded(store)) == 8
