"""Batches: they tile the log, keep to their limits, and never mix two shapes of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogFenced, OffsetOutOfRange, SegmentMissing
from tailrace.log import Reader, Tip, Writer, layout
from tailrace.log.cut import just_before
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.plan import (
    Limits,
    Piece,
    Wanted,
    fetch,
    offset_at_time,
    offset_before_time,
    pieces,
    plan_end,
)
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.model import ORIGIN, Lsn, Offset, Relation
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
    begin_writer,
    changes_of,
    put_in_parts,
    read,
    shape,
    writer,
)

T = shape()
OTHER = shape(16_401)
UNLIMITED = Limits(1 << 40, 1 << 40)


def _only(*tables: Relation) -> Wanted:
    names = {table.qualified for table in tables}
    return lambda relation: relation.qualified in names


def _oid(change: Change) -> int:
    return int.from_bytes(change[1][1:5], "big")


def _end(reader: Reader, after: Offset, changes: int = 1 << 40, size: int = 1 << 40) -> Offset:
    return plan_end(reader, after, limits=Limits(changes, size), wanted=anything)


def _batches(
    store: Store, limits: Limits, wanted: Wanted = anything, after: Offset = BEGINNING
) -> list[tuple[Offset, Offset]]:
    """The whole log, cut as a stream would cut it."""
    reader, ranges = Reader(store), []
    while (end := plan_end(reader, after, limits=limits, wanted=wanted)) > after:
        ranges.append((after, end))
        after = end
    return ranges


def _of(changes: list[Change], after: Offset, upto: Offset) -> list[Change]:
    return [change for change in changes if after < change[0] <= upto]


def _merge(store: MemoryStore, clock: Clock) -> None:
    merger = Merger(store, writer_id="m", policy=MergePolicy(1 << 20, 2, 1.0))
    for _ in range(4):
        clock.now_s += 10
        merger.step(clock.now_s)


# Where a batch ends.


def test_without_limits_a_batch_ends_with_the_log(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    reader = Reader(store)
    assert _end(reader, BEGINNING) == BEGINNING
    for _ in range(3):
        to.append(wal.rows(T, 2))
    assert _end(reader, BEGINNING) == Offset.whole(wal.end)
    assert _end(reader, Offset.whole(wal.end)) == Offset.whole(wal.end)
    assert _end(reader, ORIGIN) == Offset.whole(wal.end)


def test_a_limit_ends_a_batch_between_segments_if_it_can(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    for _ in range(4):
        to.append(wal.rows(T, 3))
    assert _batches(store, Limits(7, 1 << 40)) == [
        (BEGINNING, Offset.whole(START + 200)),
        (Offset.whole(START + 200), Offset.whole(START + 400)),
    ]


def test_a_limit_cuts_a_segment_at_the_exact_change(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(Frames.concat([wal.rows(T, 3), wal.rows(T, 4)]))
    ranges = _batches(store, Limits(2, 1 << 40))
    assert [len(_of(wal.changes, *batch)) for batch in ranges] == [2, 2, 2, 1]
    assert ranges[0][1] == Offset(Lsn(START + 100), 1)
    assert ranges[1][1] == Offset(Lsn(START + 200), 0)
    assert ranges[-1][1] == Offset.whole(wal.end)


def test_a_cut_between_transactions_is_a_whole_position(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(Frames.concat([wal.rows(T, 2), wal.rows(T, 2)]))
    assert _end(Reader(store), BEGINNING, 2) == Offset.whole(START + 199)


def test_bytes_are_a_limit_too(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T, 9))
    size = len(wal.changes[0][1])
    ranges = _batches(store, Limits(1 << 40, size * 4))
    assert [len(_of(wal.changes, *batch)) for batch in ranges] == [4, 4, 1]


def test_f045_a_huge_transaction_is_cut_inside_its_parts(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    put_in_parts(to, wal.rows(T, 10), 4, 8)
    to.append(wal.rows(T))
    for limit in range(1, 13):
        ranges = _batches(store, Limits(limit, 1 << 40))
        counts = [len(_of(wal.changes, *batch)) for batch in ranges]
        assert sum(counts) == 12 and max(counts) <= limit
        read_back = [change for batch in ranges for change in read(store, *batch)]
        assert read_back == wal.changes


@pytest.mark.parametrize("limits", [Limits(0, 0), Limits(1, 1), Limits(0, 1 << 40)])
def test_at_least_one_change_is_let_through(store: Store, limits: Limits) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(Frames.concat([wal.rows(T, 2), wal.rows(T, 1)]))
    put_in_parts(to, wal.rows(T, 3), 3)
    ranges = _batches(store, limits)
    assert [len(_of(wal.changes, *batch)) for batch in ranges] == [1] * 6


def test_f054_a_truncate_of_several_tables_is_not_cut(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(
        wal.transaction(
            *(wire.relation(T), wire.relation(OTHER), wal.row(T)),
            *(wire.truncate(T.oid, OTHER.oid), wal.row(T)),
        )
    )
    ranges = _batches(store, Limits(1, 1 << 40))
    assert [len(_of(wal.changes, *batch)) for batch in ranges] == [1, 2, 1]


def test_tables_that_nobody_wants_count_nothing(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(Frames.concat([wal.rows(OTHER, 50), wal.rows(T, 6), wal.rows(OTHER, 50)]))
    for _ in range(3):
        to.append(wal.rows(OTHER, 50, announce=False))
    ranges = _batches(store, Limits(4, 1 << 40), _only(T))
    counts = [sum(_oid(change) == T.oid for change in _of(wal.changes, *batch)) for batch in ranges]
    assert counts == [4, 2, 0]
    found = [
        piece
        for after, upto in ranges
        for piece in pieces(Reader(store), after, upto, wanted=_only(T))
    ]
    assert {piece.key for piece in found} == {layout.segment_key(START)}


def test_a_start_before_the_log_or_inside_a_transaction_is_honoured(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T, 4))
    after = Offset(wal.end, 1)
    end = _end(Reader(store), after, 1)
    assert end == Offset(wal.end, 2)
    assert read(store, after, end) == wal.changes[2:3]
    assert read(store, after) == wal.changes[2:]


# Shapes.


def _shapes(store: Store, ranges: list[tuple[Offset, Offset]]) -> list[set[tuple[str, ...]]]:
    """The shapes of the changes of each batch, told by how many columns a row has."""
    return [
        {tuple("c" * frame[7]) for _, frame in read(store, *batch) if frame[:1] == b"I"}
        for batch in ranges
    ]


def test_f058_a_batch_ends_before_a_table_changes_its_shape(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    wider = shape(T.oid, "id", "note")
    to.append(wal.rows(T, 2))
    to.append(wal.transaction(wal.row(T), wire.relation(wider), wal.row(wider), wal.row(wider)))
    to.append(wal.rows(wider, 2, announce=False))
    to.append(wal.rows(T, 2))
    ranges = _batches(store, UNLIMITED)
    assert [len(_of(wal.changes, *batch)) for batch in ranges] == [3, 4, 2]
    assert all(len(shapes) == 1 for shapes in _shapes(store, ranges))


@pytest.mark.parametrize("cuts", [(), (2,), (3,), (5, 6), (2, 3, 4, 5, 6, 7, 8)])
def test_f058_shapes_in_one_huge_transaction_are_kept_apart(
    store: Store, cuts: tuple[int, ...]
) -> None:
    """The shape changes and changes back: three shapes in a row, two of them the same."""
    to, wal = begin_writer(store), Wal()
    wider = shape(T.oid, "id", "note")
    body = [
        *(wire.relation(T), wal.row(T), wal.row(T), wire.relation(wider)),
        *(wal.row(wider), wire.relation(T), wal.row(T), wal.row(T)),
    ]
    transaction = wal.transaction(*body)
    if cuts:
        put_in_parts(to, transaction, *cuts)
    else:
        to.append(transaction)
    ranges = _batches(store, UNLIMITED)
    assert [len(_of(wal.changes, *batch)) for batch in ranges] == [2, 1, 2]
    assert all(len(shapes) == 1 for shapes in _shapes(store, ranges))


def test_f058_a_shape_of_a_table_that_nobody_wants_ends_no_batch(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    to.append(wal.rows(OTHER))
    to.append(wal.rows(shape(OTHER.oid, "id", "note")))
    to.append(wal.rows(T))
    assert _batches(store, UNLIMITED, _only(T)) == [(BEGINNING, Offset.whole(wal.end))]


def test_f060_a_table_made_again_under_its_name_is_another_shape(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    again = shape(17_000, "id", "note", name=T.name)
    to.append(wal.rows(T))
    to.append(wal.rows(again))
    assert len(_batches(store, UNLIMITED)) == 2


def test_a_renamed_table_is_another_shape(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    to.append(wal.rows(replace(T, name="renamed")))
    assert len(_batches(store, UNLIMITED)) == 2


def test_a_repeated_relation_frame_is_no_new_shape(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    for _ in range(3):
        to.append(wal.rows(T))
    assert len(_batches(store, UNLIMITED)) == 1


def test_f058_shapes_are_cut_in_a_merged_segment_as_before() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    wider = shape(T.oid, "id", "note")
    for relation in (T, T, wider, wider, T):
        to.append(wal.rows(relation, 2))
    before = _batches(store, UNLIMITED)
    _merge(store, clock)
    after = _batches(store, UNLIMITED)
    assert len(after) == 3
    assert [_of(wal.changes, *b) for b in after] == [_of(wal.changes, *b) for b in before]


# Pieces.


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


def test_pieces_planned_before_a_merge_are_read_once_after_it() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    for _ in range(4):
        to.append(wal.rows(T, 3))
    after, upto = Offset(Lsn(START + 100), 1), Offset(Lsn(START + 400), 1)
    planned = list(pieces(Reader(store), after, upto, wanted=anything))
    assert len(planned) == 4
    _merge(store, clock)
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

    assert changes(planned) == changes(again) == _of(wal.changes, after, upto)


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
    _merge(store, clock)
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
                _merge(store, clock)

    watched = WatchedStore(store, before=merge)
    assert _end(Reader(watched), BEGINNING, 2) == Offset(Lsn(START + 100), 1)
    assert reads == 2


# Any log, any limits.

TRANSACTION = st.tuples(
    st.lists(st.tuples(st.sampled_from([T, OTHER]), st.booleans()), max_size=5),
    st.sampled_from(["alone", "with the next", "in parts"]),
)


def _write(store: Store, made: list[tuple[list[tuple[Relation, bool]], str]]) -> Wal:
    """A log in which tables may change their shape at any row."""
    to, wal = begin_writer(store), Wal()
    in_force: dict[int, Relation] = {}
    waiting: list[Frames] = []
    for rows, how in made:
        frames = []
        for table, is_wide in rows:
            wide = shape(table.oid, "id", "note") if is_wide else table
            if in_force.get(table.oid) != wide:
                frames.append(wire.relation(wide))
                in_force[table.oid] = wide
            frames.append(wal.row(wide))
        transaction = wal.transaction(*frames)
        if how == "in parts":
            _append(to, waiting)
            put_in_parts(to, transaction, *range(1, len(transaction) - 1, 2)[1:])
            continue
        waiting.append(transaction)
        if how == "alone":
            _append(to, waiting)
    _append(to, waiting)
    return wal


def _append(to: Writer, waiting: list[Frames]) -> None:
    if waiting:
        to.append(Frames.concat(waiting))
        waiting.clear()


@settings(max_examples=50)
@given(
    st.lists(TRANSACTION, min_size=1, max_size=8),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.sampled_from([_only(T), _only(OTHER), anything]),
    st.integers(0, 4),
)
def test_batches_of_any_limits_tile_the_log(
    made: list[tuple[list[tuple[Relation, bool]], str]],
    sizes: list[int],
    wanted: Wanted,
    merge_at: int,
) -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _write(store, made)
    reader, after, number = Reader(store), BEGINNING, 0
    seen: list[Change] = []
    while True:
        if number == merge_at:
            _merge(store, clock)
        limits = Limits(sizes[number % len(sizes)], 1 << 40)
        end = plan_end(reader, after, limits=limits, wanted=wanted)
        if end == after:
            break
        batch = [
            change
            for planned in pieces(reader, after, end, wanted=wanted)
            for piece, segment in fetch(store, planned, wanted=wanted)
            for change in changes_of(piece, segment)
        ]
        mine = [change for change in batch if wanted(shape(_oid(change)))]
        assert len(mine) <= limits.changes_max
        for oid in (T.oid, OTHER.oid):
            assert len({frame[7] for _, frame in mine if _oid((after, frame)) == oid}) <= 1
        seen += mine
        after, number = end, number + 1
    assert seen == [change for change in wal.changes if wanted(shape(_oid(change)))]
    assert after == Offset.whole(wal.end)


# Times.


def _timed(store: Store, times: list[int]) -> Wal:
    to, wal = begin_writer(store), Wal()
    for number in range(0, len(times), 2):
        to.append(
            Frames.concat(
                [
                    wal.transaction(wire.relation(T), wal.row(T), ts_us=time_us)
                    for time_us in times[number : number + 2]
                ]
            )
        )
    return wal


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(-1, 10), st.booleans())
def test_f094_times_choose_positions_and_never_order(
    times: list[int], time_us: int, is_merged: bool
) -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _timed(store, times)
    if is_merged:
        _merge(store, clock)
    asked = time_us + POSTGRES_EPOCH_US
    ends = [START + 100 * (number + 1) for number in range(len(times))]
    late = [end for end, each in zip(ends, times, strict=True) if each >= time_us]
    early = [end for end, each in zip(ends, times, strict=True) if each <= time_us]
    reader = Reader(store)
    first = Offset.whole(late[0] - 1) if late else Offset.whole(wal.end)
    assert offset_before_time(reader, asked) == first
    last = Offset.whole(early[-1]) if early else BEGINNING
    assert offset_at_time(reader, asked) == last
    assert read(store) == wal.changes


def test_a_time_before_or_after_everything(store: Store) -> None:
    wal = _timed(store, [5, 6])
    reader = Reader(store)
    late = POSTGRES_EPOCH_US + 100
    assert offset_before_time(reader, 0) == Offset.whole(START + 99)
    assert offset_at_time(reader, 0) == BEGINNING
    assert offset_before_time(reader, late) == offset_at_time(reader, late)
    assert offset_at_time(reader, late) == Offset.whole(wal.end)


def test_the_time_of_a_huge_transaction_is_that_of_its_commit(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    frames = wal.transaction(wire.relation(T), wal.row(T), wal.row(T), ts_us=7)
    put_in_parts(to, frames, 3)
    assert offset_at_time(Reader(store), POSTGRES_EPOCH_US + 7) == Offset.whole(wal.end)
    assert offset_before_time(Reader(store), POSTGRES_EPOCH_US + 7) == Offset.whole(wal.end - 1)


@pytest.mark.parametrize("look", [offset_at_time, offset_before_time])
def test_only_the_segment_that_matters_is_read_whole(
    look: Callable[[Reader, int], Offset],
) -> None:
    store = MemoryStore()
    _timed(store, list(range(20)))
    reader = Reader(store)
    list(reader.walk(ORIGIN))
    reads: list[str] = []

    def note(what: str, key: str) -> None:
        if what == "get" and key.startswith(layout.SEGMENTS):
            reads.append(key)

    watched = Reader(WatchedStore(store, before=note))
    look(watched, POSTGRES_EPOCH_US + 9)
    whole = [key for key in reads if reads.count(key) > 1]
    assert len(set(whole)) == 1


def test_the_position_before_an_offset_does_not_include_it() -> None:
    offset = Offset(Lsn(500), 3)
    assert just_before(offset) == Offset(Lsn(500), 2)
    assert just_before(Offset(Lsn(500), 0)) == Offset.whole(499)


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
