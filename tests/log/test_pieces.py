"""Pieces of a batch: tight, complete, and read once whatever happens between plan and read."""

from __future__ import annotations

import pytest

from tailrace.errors import LogFenced, OffsetOutOfRange, SegmentMissing
from tailrace.log import Reader, Tip, layout
from tailrace.log.plan import (
    Limits,
    Piece,
    fetch,
    offset_before_time,
    pieces,
    plan_end,
)
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US
from tailrace.storage import MemoryStore, ObjectMissing, Store
from tests.decode import wire
from tests.log.faulty_store import WatchedStore
from tests.log.making import (
    BEGINNING,
    SOURCE,
    START,
    Change,
    Clock,
    Wal,
    anything,
    begin,
    begin_writer,
    between,
    changes_of,
    merge_all,
    put_in_parts,
    read,
    shape,
    writer,
)

T = shape()


def _end(reader: Reader, after: Offset, changes_max: int = 1 << 40) -> Offset:
    return plan_end(reader, after, limits=Limits(changes_max, 1 << 40), wanted=anything)


def test_pieces_are_tight_and_follow_each_other(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T, 2))
    put_in_parts(to, wal.rows(T, 4), 3)
    to.append(wal.rows(T, 2))
    upto = Offset(wal.end, 0)
    planned = list(pieces(Reader(store), Offset(Lsn(START + 100), 0), upto, wanted=anything))
    assert [(piece.after, piece.upto) for piece in planned] == [
        (Offset(Lsn(START + 100), 0), Offset.whole(START + 100)),
        (Offset.whole(START + 199), Offset(Lsn(START + 200), 0)),
        (Offset(Lsn(START + 200), 0), Offset(Lsn(START + 200), 3)),
        (Offset.whole(START + 200), upto),
    ]
    assert [piece.part is not None for piece in planned] == [False, True, True, False]


def test_nothing_past_the_range_is_looked_at(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    for _ in range(3):
        to.append(wal.rows(T))
    for upto in (Offset(Lsn(START + 100), 0), Offset.whole(START + 100)):
        planned = list(pieces(Reader(store), BEGINNING, upto, wanted=anything))
        assert [(piece.after, piece.upto) for piece in planned] == [(BEGINNING, upto)]


def test_an_empty_range_has_no_pieces(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    at = Offset.whole(wal.end)
    assert list(pieces(Reader(store), at, at, wanted=anything)) == []


def test_a_batch_that_the_log_no_longer_holds_is_never_read_in_part(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    planned = Offset.whole(wal.end + 100)
    with pytest.raises(SegmentMissing, match="ends at"):
        list(pieces(Reader(store), BEGINNING, planned, wanted=anything))
    to.put_progress(planned.commit_lsn)
    assert len(list(pieces(Reader(store), BEGINNING, planned, wanted=anything))) == 1


def test_f093_a_piece_that_retention_dropped_is_out_of_range() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    for _ in range(3):
        to.append(wal.rows(T))
    planned = list(pieces(Reader(store), BEGINNING, Offset.whole(wal.end), wanted=anything))
    retain(store, RetentionPolicy(bytes_max=0), now_s=clock.now_s)
    with pytest.raises(OffsetOutOfRange):
        fetch(store, planned[0], wanted=anything)
    assert len(list(fetch(store, planned[2], wanted=anything))) == 1


def test_a_piece_that_is_gone_for_good_is_missing(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    header = put_in_parts(to, wal.rows(T, 4), 3)
    planned = list(pieces(Reader(store), BEGINNING, Offset.whole(wal.end), wanted=anything))
    store.delete([header.parts[0].key])
    with pytest.raises(SegmentMissing):
        fetch(store, planned[0], wanted=anything)


@pytest.mark.parametrize("step", [50, 400])
def test_a_zombie_under_a_name_that_was_merged_away_is_not_taken_for_what_was_planned(
    step: int,
) -> None:
    """A drain has the position of its own message: it may end before or after the one that
    counts."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    tip, wal = begin(store), Wal()
    to, late = writer(store, tip), writer(store, tip, "late")
    for _ in range(4):
        to.append(wal.rows(T, 3))
    upto = Offset.whole(wal.end)
    planned = list(pieces(Reader(store), BEGINNING, upto, wanted=anything))
    merge_all(store, clock)
    drained = Wal()
    with pytest.raises(LogFenced):
        frames = [wire.relation(T), drained.row(T)]
        late.append(drained.transaction(*frames, step=step))
    found = [
        change
        for piece in planned
        for each, segment in fetch(store, piece, wanted=anything)
        for change in changes_of(each, segment)
    ]
    assert found == wal.changes


def test_pieces_planned_before_a_merge_are_read_once_after_it() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    for _ in range(4):
        to.append(wal.rows(T, 3))
    after, upto = Offset(Lsn(START + 100), 1), Offset(Lsn(START + 400), 1)
    planned = list(pieces(Reader(store), after, upto, wanted=anything))
    assert len(planned) == 4
    merge_all(store, clock)
    with pytest.raises(ObjectMissing):
        store.get(planned[0].key)
    again = list(pieces(Reader(store), after, upto, wanted=anything))
    assert len(again) == 1

    def changes(of: list[Piece]) -> list[Change]:
        return [
            change
            for piece in of
            for found, segment in fetch(store, piece, wanted=anything)
            for change in changes_of(found, segment)
        ]

    assert changes(planned) == changes(again) == between(wal.changes, after, upto)


def test_f082_a_zombies_shorter_segment_cuts_no_piece_short() -> None:
    """It takes a name that was merged away after a batch was planned, with less under it."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    first, second = wal.rows(T), wal.rows(T)
    to.append(Frames.concat([first, second]))
    to.append(wal.rows(T))
    planned = list(pieces(Reader(store), BEGINNING, Offset.whole(wal.end), wanted=anything))
    reader = Reader(store)
    (link, *_) = reader.walk(BEGINNING)
    merge_all(store, clock)
    with pytest.raises(LogFenced):
        writer(store, Tip(SOURCE, START, START), "zombie").append(first)
    found = [
        change
        for piece in planned
        for each, segment in fetch(store, piece, wanted=anything)
        for change in changes_of(each, segment)
    ]
    assert found == wal.changes
    with pytest.raises(ObjectMissing):
        reader.read(link)
    late = POSTGRES_EPOCH_US + 702 * 1_000_000
    assert offset_before_time(reader, late) == Offset.whole(START + 199)


def test_planning_goes_on_when_its_segment_is_merged_away() -> None:
    """The frames are gone between the look at the header and the cut inside."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    for _ in range(3):
        to.append(wal.rows(T, 4))
    reads = 0

    def merge(what: str, key: str) -> None:
        nonlocal reads
        if what == "get" and key == layout.segment_key(START):
            reads += 1
            if reads == 2:
                merge_all(store, clock)

    watched = WatchedStore(store, before=merge)
    assert _end(Reader(watched), BEGINNING, 2) == Offset(Lsn(START + 100), 1)
    assert reads == 2


def test_a_reader_ahead_of_a_mended_log_waits_for_it(store: Store) -> None:
    """What it has read comes again at the same offsets, and is not read twice."""
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T, 2))
    to.append(wal.rows(T, 2))
    reader = Reader(store)
    after = _end(reader, BEGINNING)
    store.delete([layout.segment_key(START + 100)])
    assert _end(Reader(store), after) == after
    again = Wal(START + 100)
    mended = writer(store, Tip(SOURCE, Lsn(START + 100), Lsn(START + 100)), "next")
    mended.append(Frames.concat([again.rows(T, 2), again.rows(T, 3)]))
    end = _end(Reader(store), after)
    assert read(store, after, end) == again.changes[2:]
