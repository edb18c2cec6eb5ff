"""Batches: they tile the log, keep to their limits, and never mix two shapes of a table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.log import Reader, Writer, layout
from tailrace.log.cut import just_before
from tailrace.log.plan import (
    Limits,
    Wanted,
    fetch,
    pieces,
    plan_end,
)
from tailrace.model import ORIGIN, Lsn, Offset, Relation
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.making import (
    BEGINNING,
    START,
    Change,
    Clock,
    Wal,
    anything,
    begin_writer,
    between,
    changes_of,
    merge_all,
    put_in_parts,
    read,
    shape,
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
    assert [len(between(wal.changes, *batch)) for batch in ranges] == [2, 2, 2, 1]
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
    assert [len(between(wal.changes, *batch)) for batch in ranges] == [4, 4, 1]


def test_f045_a_huge_transaction_is_cut_inside_its_parts(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    put_in_parts(to, wal.rows(T, 10), 4, 8)
    to.append(wal.rows(T))
    for limit in range(1, 13):
        ranges = _batches(store, Limits(limit, 1 << 40))
        counts = [len(between(wal.changes, *batch)) for batch in ranges]
        assert sum(counts) == 12 and max(counts) <= limit
        read_back = [change for batch in ranges for change in read(store, *batch)]
        assert read_back == wal.changes


@pytest.mark.parametrize("limits", [Limits(0, 0), Limits(1, 1), Limits(0, 1 << 40)])
def test_at_least_one_change_is_let_through(store: Store, limits: Limits) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(Frames.concat([wal.rows(T, 2), wal.rows(T, 1)]))
    put_in_parts(to, wal.rows(T, 3), 3)
    ranges = _batches(store, limits)
    assert [len(between(wal.changes, *batch)) for batch in ranges] == [1] * 6


def test_f054_a_truncate_of_several_tables_is_not_cut(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(
        wal.transaction(
            *(wire.relation(T), wire.relation(OTHER), wal.row(T)),
            *(wire.truncate(T.oid, OTHER.oid), wal.row(T)),
        )
    )
    ranges = _batches(store, Limits(1, 1 << 40))
    assert [len(between(wal.changes, *batch)) for batch in ranges] == [1, 2, 1]


def test_tables_that_nobody_wants_count_nothing(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(Frames.concat([wal.rows(OTHER, 50), wal.rows(T, 6), wal.rows(OTHER, 50)]))
    for _ in range(3):
        to.append(wal.rows(OTHER, 50, announce=False))
    ranges = _batches(store, Limits(4, 1 << 40), _only(T))
    counts = [
        sum(_oid(change) == T.oid for change in between(wal.changes, *batch)) for batch in ranges
    ]
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
    assert [len(between(wal.changes, *batch)) for batch in ranges] == [3, 4, 2]
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
    assert [len(between(wal.changes, *batch)) for batch in ranges] == [2, 1, 2]
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
    merge_all(store, clock)
    after = _batches(store, UNLIMITED)
    assert len(after) == 3
    assert [between(wal.changes, *b) for b in after] == [between(wal.changes, *b) for b in before]


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
            merge_all(store, clock)
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


def test_the_position_before_an_offset_does_not_include_it() -> None:
    offset = Offset(Lsn(500), 3)
    assert just_before(offset) == Offset(Lsn(500), 2)
    assert just_before(Offset(Lsn(500), 0)) == Offset.whole(499)
