"""Readers: from any position, past every surprise, never a skip and never a double."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tailrace.errors import (
    LogError,
    LogFenced,
    OffsetOutOfRange,
    SegmentCorrupt,
    SegmentMissing,
)
from tailrace.log import Link, Reader, Tip, layout
from tailrace.log.layout import FrontierKind
from tailrace.log.marks import move_frontier
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.model import ORIGIN, Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.log.faulty_store import WatchedStore
from tests.log.making import (
    BEGINNING,
    SOURCE,
    START,
    Clock,
    Wal,
    begin,
    begin_writer,
    merge_all,
    put_in_parts,
    read,
    shape,
    writer,
)

T = shape()
POLICY = MergePolicy(segment_count_min=2, grace_s=1.0)


def _log(store: Store, count: int = 4) -> Wal:
    to, wal = begin_writer(store), Wal()
    for _ in range(count):
        to.append(wal.rows(T))
    return wal


def _ends(links: Iterator[Link]) -> list[int]:
    return [link.header.end - START for link in links]


def test_a_place_without_a_log_says_so(store: Store) -> None:
    for look in (lambda: Reader(store).begin(), lambda: list(Reader(store).walk(ORIGIN))):
        with pytest.raises(LogError, match="no log") as caught:
            look()
        assert "log.url" in caught.value.hint


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (ORIGIN, [100, 200, 300, 400]),
        (BEGINNING, [100, 200, 300, 400]),
        (Offset.whole(START + 99), [100, 200, 300, 400]),
        (Offset(Lsn(START + 100), 0), [100, 200, 300, 400]),
        (Offset.whole(START + 100), [200, 300, 400]),
        (Offset(Lsn(START + 101), 0), [200, 300, 400]),
        (Offset.whole(START + 399), [400]),
        (Offset.whole(START + 400), []),
        (Offset.whole(START + 4000), []),
    ],
)
def test_a_walk_yields_what_holds_anything_after_the_position(
    store: Store, after: Offset, expected: list[int]
) -> None:
    _log(store)
    assert _ends(Reader(store).walk(after)) == expected


def test_a_position_past_the_last_segment_is_passed_when_the_log_gets_there(store: Store) -> None:
    wal = _log(store, 1)
    to = writer(store, Tip(SOURCE, wal.end, wal.end))
    idle = Lsn(wal.end + 40)
    to.put_progress(idle)
    reader = Reader(store)
    assert reader.tip() == Tip(SOURCE, wal.end, idle)
    assert _ends(reader.walk(Offset.whole(idle))) == []
    to.append(wal.rows(T))
    assert _ends(reader.walk(Offset.whole(idle))) == [200]
    assert reader.tip() == Tip(SOURCE, wal.end, wal.end)


def test_a_reader_at_the_end_sees_what_is_appended(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    reader = Reader(store)
    at = BEGINNING
    for _ in range(3):
        assert list(reader.walk(at)) == []
        to.append(wal.rows(T))
        links = list(reader.walk(at))
        assert [link.header.end for link in links] == [wal.end]
        at = Offset.whole(wal.end)


def test_a_walk_goes_on_with_what_comes_meanwhile(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    walk = Reader(store).walk(ORIGIN)
    next(walk)
    to.append(wal.rows(T))
    assert _ends(walk) == [200]


def test_a_hole_in_the_chain_is_never_stepped_over(store: Store) -> None:
    _log(store)
    store.delete([layout.segment_key(START + 200)])
    walk = Reader(store).walk(ORIGIN)
    assert [next(walk).header.end - START for _ in range(2)] == [100, 200]
    with pytest.raises(SegmentMissing) as caught:
        next(walk)
    assert "verify" in caught.value.hint


def test_a_lost_tail_is_missed_if_progress_knows_of_it(store: Store) -> None:
    wal = _log(store)
    writer(store, Tip(SOURCE, wal.end, wal.end)).put_progress(wal.end)
    store.delete([layout.segment_key(START + 300)])
    with pytest.raises(SegmentMissing):
        list(Reader(store).walk(ORIGIN))


def test_a_segment_put_between_two_looks_is_no_alarm(store: Store) -> None:
    """The successors appear just after the reader has found nothing under their name."""
    to, wal = begin_writer(store), Wal()
    appended = False

    def append(what: str, prefix: str) -> None:
        nonlocal appended
        if what == "list" and prefix == layout.SEGMENTS and not appended:
            appended = True
            to.append(wal.rows(T))
            to.append(wal.rows(T))

    assert _ends(Reader(WatchedStore(store, before=append)).walk(ORIGIN)) == [100, 200]


def test_f093_what_retention_dropped_is_out_of_range(store: Store) -> None:
    _log(store)
    move_frontier(store, FrontierKind.RETAINED, Lsn(START + 200))
    reader = Reader(store)
    assert reader.begin() == START + 200
    for after in (ORIGIN, BEGINNING, Offset.whole(START + 199), Offset(Lsn(START + 200), 0)):
        with pytest.raises(OffsetOutOfRange) as caught:
            list(reader.walk(after))
        assert "retention" in caught.value.hint
    assert _ends(reader.walk(Offset.whole(START + 200))) == [300, 400]


def test_f093_a_walk_that_retention_overtakes_is_told(store: Store) -> None:
    _log(store)
    walk = Reader(store).walk(ORIGIN)
    next(walk)
    move_frontier(store, FrontierKind.RETAINED, Lsn(START + 300))
    store.delete(layout.segment_key(START + at) for at in (0, 100, 200))
    with pytest.raises(OffsetOutOfRange):
        next(walk)


def test_a_walk_caught_in_a_merge_yields_nothing_twice() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _log(store)
    for seen in range(5):
        copy = _copy(store, clock)
        walk = Reader(copy).walk(ORIGIN)
        links = [next(walk) for _ in range(seen)]
        merge_all(copy, clock)
        links += walk
        spans = [(link.start, link.header.end) for link in links]
        assert [end for _, end in spans[:seen]] == [START + 100 * (n + 1) for n in range(seen)]
        assert spans[0][0] == START and spans[-1][1] == wal.end
        assert all(one[1] == other[0] for one, other in pairwise(spans))


def _copy(store: Store, clock: Clock) -> MemoryStore:
    copy = MemoryStore(clock=clock)
    for entry in store.list(""):
        copy.put_new(entry.key, store.get(entry.key))
    return copy


def test_a_reader_that_knew_the_small_segments_finds_the_merged_ones() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _log(store)
    reader = Reader(store)
    assert len(list(reader.walk(ORIGIN))) == 4
    merge_all(store, clock)
    links = list(reader.walk(ORIGIN))
    assert [link.key for link in links] == [layout.merged_key(START, wal.end)]
    inside = list(reader.walk(Offset.whole(START + 250)))
    assert [(link.start, link.header.start) for link in inside] == [(START + 250, START)]
    assert reader.tip() == Tip(SOURCE, wal.end, wal.end)


def test_merged_segments_that_overlap_are_read_once() -> None:
    """Two mergers at work at the same time, each with another idea of the runs."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _log(store, 6)
    clock.now_s += 10
    halves = _copy(store, clock)
    other = _copy(store, clock)
    halves.delete(layout.segment_key(START + at) for at in (400, 500))
    other.delete(layout.segment_key(START + at) for at in (0, 100))
    clock.now_s += 10
    for each in (halves, other):
        Merger(each, writer_id="m", policy=POLICY).step(clock.now_s)
        for entry in each.list(layout.MERGED):
            store.put_new(entry.key, each.get(entry.key))
    assert [layout.range_of(entry.key) for entry in store.list(layout.MERGED)] == [
        (START, START + 400),
        (START + 200, START + 600),
    ]
    assert read(store) == wal.changes
    clock.now_s += 10
    Merger(store, writer_id="m", policy=POLICY).step(clock.now_s)
    assert [entry.key for entry in store.list(layout.SEGMENTS)] == [layout.GENESIS]
    assert read(store) == wal.changes
    assert Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)


def test_a_zombies_late_segment_below_the_frontier_is_not_read() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    tip = begin(store)
    zombie = writer(store, tip, "zombie")
    to, wal = writer(store, tip), Wal()
    for _ in range(4):
        to.append(wal.rows(T))
    merge_all(store, clock)
    longer = Wal()
    with pytest.raises(LogFenced):
        zombie.append(Frames.concat([longer.rows(T) for _ in range(5)]))
    assert list(Reader(store).walk(Offset.whole(wal.end))) == []
    assert Reader(store).tip() == Tip(SOURCE, wal.end, wal.end)
    assert layout.segment_key(START) in {entry.key for entry in store.list("")}
    assert read(store) == wal.changes
    clock.now_s += 10
    Merger(store, writer_id="m", policy=POLICY).step(clock.now_s)
    assert [entry.key for entry in store.list(layout.SEGMENTS)] == [layout.GENESIS]


def test_a_mended_tail_is_read_anew_by_those_who_knew_the_old_one(store: Store) -> None:
    """Recovery put a damaged last segment aside, and its name came back with another end."""
    wal = _log(store, 2)
    reader = Reader(store)
    list(reader.walk(ORIGIN))
    store.delete([layout.segment_key(START + 100)])
    again = Wal(START + 100)
    to = writer(store, Tip(SOURCE, Lsn(START + 100), Lsn(START + 100)), "next")
    to.append(Frames.concat([again.rows(T), again.rows(T)]))
    to.put_progress(to.position)
    links = list(reader.walk(Offset.whole(wal.end)))
    assert [(link.start, link.header.end) for link in links] == [(wal.end, again.end)]


def test_a_strange_object_in_the_log_is_refused(store: Store) -> None:
    _log(store)
    store.put_new("segments/README", b"do not delete")
    with pytest.raises(SegmentCorrupt, match="README"):
        list(Reader(store).walk(ORIGIN))


@pytest.mark.slow
def test_readers_beside_a_writer_a_merger_and_retention(store: Store) -> None:
    """In threads of their own: what each reader has collected is the log, each change once."""
    to, wal = begin_writer(store), Wal()
    done = threading.Event()
    # A segment is merged and gone long after its writer is done with it; here there is no time.
    in_turn = threading.Lock()
    failures: list[BaseException] = []

    def write() -> None:
        for number in range(120):
            frames = wal.rows(T, 2)
            with in_turn:
                if number % 15 == 7:
                    put_in_parts(to, frames, 2)
                else:
                    to.append(frames)

    def merge() -> None:
        merger = Merger(store, writer_id="m", policy=MergePolicy(1 << 20, 3, 0.0))
        while not done.is_set():
            with in_turn:
                merger.step(float(1 << 40))
            retain(store, RetentionPolicy(), now_s=0.0)

    def follow() -> None:
        seen: list[Offset] = []
        after, reader = BEGINNING, Reader(store)
        while not done.is_set() or after < Offset.whole(wal.end):
            end = Offset.whole(reader.tip().segment_end)
            seen += [offset for offset, _ in read(store, after, end)]
            after = end
        assert seen == [offset for offset, _ in wal.changes]

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            done.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in (merge, follow, follow)]
    for thread in threads:
        thread.start()
    run(write)
    done.set()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert read(store) == wal.changes
