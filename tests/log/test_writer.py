"""The writer: what it seals is what readers see, and there is never a second one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailrace.errors import LogFenced, SegmentCorrupt, StoreError
from tailrace.log import Kind, Reader, Tip, Writer, layout, put_genesis, recover_tip, segment
from tailrace.log.layout import FrontierKind
from tailrace.log.marks import move_frontier
from tailrace.log.tip import newest_progress
from tailrace.log.writer import SEGMENTS_PER_CHECKPOINT
from tailrace.model import Column, Lsn, NamedType, Offset, PgType, Relation
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.faulty_store import WatchedStore, forgetful
from tests.log.making import (
    BEGINNING,
    NOTE,
    SOURCE,
    START,
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


def test_readers_see_the_frames_and_offsets_that_were_appended(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    given = [
        wal.rows(T, 3),
        Frames.concat([wal.rows(T, 1), wal.transaction(wire.message()), wal.rows(T, 2)]),
        wal.transaction(wire.relation(T), wire.truncate(T.oid), wal.row(T)),
    ]
    for frames in given:
        to.append(frames)
    links = list(Reader(store).walk(Offset.whole(START)))
    found = [segment.read(store, link.key).frames for link in links]
    for appended, stored in zip(given, found, strict=True):
        assert appended.lsn.tolist() == stored.lsn.tolist()
        assert appended.offsets.tolist() == stored.offsets.tolist()
        assert appended.data.tobytes() == stored.data.tobytes()
    assert read(store) == wal.changes
    assert [row for _, _, row in decoded(store)][:3] == ["row 1", "row 2", "row 3"]


def test_the_chain_is_contiguous_by_name(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    headers = [to.append(wal.rows(T)) for _ in range(3)]
    assert headers[0].start == START
    assert [h.start for h in headers[1:]] == [h.end for h in headers[:-1]]
    keys = [layout.GENESIS, *(layout.segment_key(h.start) for h in headers)]
    assert [entry.key for entry in store.list(layout.SEGMENTS)] == keys
    assert to.segment_end == to.position == headers[-1].end == wal.end


def test_a_header_says_what_its_segment_holds(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    early = wal.transaction(wire.relation(T), wal.row(T), ts_us=5)
    late = wal.transaction(wal.row(T), wire.truncate(T.oid), ts_us=3)
    header = to.append(Frames.concat([early, late]))
    assert header.kind is Kind.SEGMENT and header.source == SOURCE
    assert (header.frame_count, header.transaction_count, header.change_count) == (8, 2, 3)
    assert header.first == Offset(Lsn(START + 100), 0)
    assert header.last == Offset(Lsn(START + 200), 1)
    assert header.commit_ts_us_max - header.commit_ts_us_min == 2
    assert segment.read(store, layout.segment_key(START)).header == header


def test_f048_a_segment_without_a_change_moves_the_chain(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    header = to.append(wal.transaction(wire.message()))
    assert (header.change_count, header.first, header.last) == (0, None, None)
    to.append(wal.rows(T))
    assert read(store) == wal.changes and len(wal.changes) == 1


def test_a_truncate_counts_once_for_each_table(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    other = shape(16_401)
    header = to.append(
        wal.transaction(
            wire.relation(T), wire.relation(other), wire.truncate(T.oid, other.oid), wal.row(T)
        )
    )
    assert header.change_count == 3
    assert header.last == Offset(wal.end, 2)
    assert {use.relation.oid: use.change_count for use in header.relations} == {
        T.oid: 2,
        other.oid: 1,
    }


@pytest.mark.parametrize(
    "broken",
    [
        Frames.empty(),
        Wal().rows(T, 2).slice(0, 3),
        Frames.concat([Wal(START + 500).rows(T), Wal(START).rows(T)]),
        Wal(START - 200).rows(T),
    ],
    ids=["nothing", "open", "backwards", "old"],
)
def test_only_whole_transactions_in_rising_order_are_sealed(store: Store, broken: Frames) -> None:
    to = begin_writer(store)
    with pytest.raises(SegmentCorrupt):
        to.append(broken)
    assert [entry.key for entry in store.list(layout.SEGMENTS)] == [layout.GENESIS]
    wal = Wal()
    to.append(wal.rows(T))
    assert read(store) == wal.changes


# Parts.


def test_f045_parts_show_only_with_the_segment_that_names_them(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    before = list(wal.changes)
    huge = wal.rows(T, 7)
    to.put_part(huge.slice(0, 4))
    to.put_part(huge.slice(4, len(huge) - 1))
    assert read(store) == before
    assert recover_tip(store) == Tip(SOURCE, Lsn(START + 100), Lsn(START + 100))
    header = to.append(huge.slice(len(huge) - 1, len(huge)))
    to.append(wal.rows(T, announce=False))
    assert read(store) == wal.changes
    assert header.change_count == 7 and header.transaction_count == 1
    assert [(part.first_ordinal, part.change_count) for part in header.parts] == [(0, 2), (2, 5)]
    assert (header.first, header.last) == (Offset(header.end, 0), Offset(header.end, 6))
    assert [row for _, _, row in decoded(store)] == [f"row {n + 1}" for n in range(9)]


def test_a_shape_that_changes_across_parts_is_followed(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    wider = shape(T.oid, "id", "note")
    body = [
        *(wal.row(T), wal.row(T), wire.relation(wider), wal.row(wider)),
        *(wal.row(wider), wire.relation(T), wal.row(T), wal.row(T)),
    ]
    header = put_in_parts(to, wal.transaction(*body), 3, 5, 6, 8)
    at = [
        (use.relation.column_names, use.since.ordinal, use.change_count, use.initial)
        for use in header.relations
    ]
    assert at == [
        (("id",), 0, 2, True),
        (("id", "note"), 2, 2, False),
        (("id",), 4, 2, False),
    ]
    assert {use.since.commit_lsn for use in header.relations} == {wal.end}
    to.append(wal.rows(T, announce=False))
    columns = [columns for _, columns, _ in decoded(store)]
    assert columns == ["id"] * 3 + ["id,note"] * 2 + ["id"] * 3


def test_parts_without_a_change_are_harmless(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    silent = wal.transaction(wire.message(), wire.message())
    header = put_in_parts(to, silent, 2)
    assert (header.change_count, header.first, header.last) == (0, None, None)
    put_in_parts(to, wal.rows(T, 2), 1, 2, 3)
    assert read(store) == wal.changes
    assert len(decoded(store)) == 2


def test_discarded_parts_are_never_named(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.put_part(Wal().rows(T, 3).slice(0, 3))
    to.discard_parts()
    header = to.append(wal.rows(T))
    assert header.parts == ()
    assert read(store) == wal.changes


# Which shape is in force.


def test_versions_of_a_table_are_counted_from_where_they_begin(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    wider = shape(T.oid, "id", "note")
    other = shape(16_401)
    first = to.append(Frames.concat([wal.rows(T, 2), wal.rows(other)]))
    assert not any(use.initial for use in first.relations)
    second = to.append(
        wal.transaction(
            *(wal.row(T), wire.relation(wider), wal.row(wider), wal.row(wider)),
            *(wire.relation(T), wal.row(T), wire.relation(T), wal.row(T)),
        )
    )
    uses = [
        (use.relation, use.since.ordinal, use.change_count, use.initial) for use in second.relations
    ]
    assert uses == [(T, 0, 1, True), (wider, 1, 2, False), (T, 3, 2, False)]
    third = to.append(wal.rows(other, announce=False))
    assert [(use.relation, use.initial) for use in third.relations] == [(other, True)]


def test_a_row_without_a_shape_is_refused(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    with pytest.raises(SegmentCorrupt, match="16400"):
        to.append(wal.rows(T, announce=False))


def test_a_second_try_decodes_rows_with_the_shape_of_the_first(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    again = writer(forgetful(store), Tip(SOURCE, wal.end, wal.end), "again")
    wider = shape(T.oid, "id", "note")
    # The shape changes in the middle of frames that have to be put twice.
    head = wal.rows(T)
    frames = wal.transaction(wal.row(T), wire.relation(wider), wal.row(wider))
    both = Frames.concat([head, frames])
    with pytest.raises(StoreError):
        again.append(both)
    header = again.append(both)
    assert [use.change_count for use in header.relations] == [2, 1]
    assert read(store) == wal.changes
    columns = [columns for _, columns, _ in decoded(store)]
    assert columns == ["id"] * 3 + ["id,note"]


# One writer.


def test_our_own_retry_after_a_lost_answer_succeeds(store: Store) -> None:
    wal = Wal()
    to = writer(forgetful(store), begin(store), "ours")
    frames = wal.rows(T)
    with pytest.raises(StoreError):
        to.append(frames)
    header = to.append(frames)
    assert header.end == to.position == wal.end
    to.append(wal.rows(T, announce=False))
    assert read(store) == wal.changes


def test_a_part_is_put_again_under_another_name(store: Store) -> None:
    wal = Wal()
    to = writer(forgetful(store), begin(store), "ours")
    huge = wal.rows(T, 4)
    with pytest.raises(StoreError):
        to.put_part(huge.slice(0, 4))
    to.put_part(huge.slice(0, 4))
    to.put_part(huge.slice(4, len(huge) - 1))
    to.append(huge.slice(len(huge) - 1, len(huge)))
    assert read(store) == wal.changes
    assert len(store.list(layout.PARTS)) == 3


def test_f082_the_second_of_two_writers_is_fenced(store: Store) -> None:
    tip = begin(store)
    one, other = writer(store, tip, "one"), writer(store, tip, "other")
    wal = Wal()
    one.append(wal.rows(T))
    with pytest.raises(LogFenced):
        other.append(Wal().rows(T, 2))
    one.append(wal.rows(T, announce=False))
    assert read(store) == wal.changes


def test_f082_another_end_of_the_same_writer_is_not_taken_for_a_retry(store: Store) -> None:
    tip = begin(store)
    writer(store, tip, "same").append(Wal().rows(T))
    wal = Wal()
    longer = Frames.concat([wal.rows(T), wal.rows(T)])
    with pytest.raises(LogFenced):
        writer(store, tip, "same").append(longer)


@pytest.mark.parametrize("kind", FrontierKind)
def test_f082_a_zombie_below_a_frontier_is_fenced(store: Store, kind: FrontierKind) -> None:
    tip = begin(store)
    zombie, leader, wal = writer(store, tip, "zombie"), writer(store, tip, "leader"), Wal()
    leader.append(wal.rows(T))
    move_frontier(store, kind, leader.segment_end)
    store.delete([layout.segment_key(START)])
    with pytest.raises(LogFenced):
        zombie.append(Wal().rows(T))


def test_f082_a_name_that_is_taken_and_gone_again_was_anothers(store: Store) -> None:
    tip = begin(store)
    writer(store, tip, "leader").append(Wal().rows(T))

    def before(what: str, key: str) -> None:
        if what == "get":
            store.delete([layout.segment_key(START)])

    with pytest.raises(LogFenced):
        writer(WatchedStore(store, before=before), tip, "zombie").append(Wal().rows(T))


# Genesis and progress.


def test_a_log_begins_once(store: Store) -> None:
    assert begin(store) == Tip(SOURCE, START, START)
    assert begin(store) == Tip(SOURCE, START, START)
    with pytest.raises(LogFenced):
        put_genesis(store, SOURCE, START, writer_id="another", note=NOTE)
    header = segment.read_header(store, layout.GENESIS)
    assert header.kind is Kind.GENESIS and header.note == NOTE


def test_progress_never_moves_back(store: Store) -> None:
    to = begin_writer(store)
    for position in (START + 50, START + 20, START + 70, START + 70, START + 10):
        to.put_progress(Lsn(position))
    assert to.position == START + 70
    late = writer(store, Tip(SOURCE, START, START), "late")
    late.put_progress(Lsn(START + 60))
    progress = newest_progress(store)
    assert progress is not None
    assert (progress.position, progress.segment_end) == (START + 70, START)
    assert Reader(store).tip() == Tip(SOURCE, START, Lsn(START + 70))


def test_old_progress_is_cleared_away_but_for_one(store: Store) -> None:
    to = begin_writer(store)
    for step in range(10):
        to.put_progress(Lsn(START + step))
    assert [layout.position_of(entry.key) for entry in store.list(layout.PROGRESS)] == [
        START + 8,
        START + 9,
    ]


def test_progress_below_the_last_segment_says_nothing_new(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    to.put_progress(Lsn(wal.end - 10))
    assert store.list(layout.PROGRESS) == []
    assert to.position == wal.end


def test_a_busy_log_leaves_progress_now_and_then() -> None:
    store = MemoryStore()
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    for _ in range(SEGMENTS_PER_CHECKPOINT):
        to.append(wal.rows(T, announce=False))
    progress = newest_progress(store)
    assert progress is not None and progress.segment_end == progress.position
    assert progress.segment_end == wal.end - 100


def test_the_catalog_adds_what_a_frame_cannot_say(store: Store) -> None:
    asked: list[Sequence[Relation]] = []

    def describe(relations: Sequence[Relation]) -> list[Relation]:
        asked.append(relations)
        return [replace(each, key=each.column_names) for each in relations]

    to = Writer(store, begin(store), writer_id="w", describe=describe)
    wal = Wal()
    wider = shape(T.oid, "id", "note")
    header = to.append(Frames.concat([wal.rows(T), wal.rows(T), wal.rows(wider)]))
    assert [use.relation.key for use in header.relations] == [("id",), ("id", "note")]
    to.append(wal.rows(wider, announce=True))
    assert asked == [[T, wider]]


def test_f060_type_frames_tell_what_a_domain_is_made_of(store: Store) -> None:
    columns = tuple(Column(f"c{oid}", oid, -1, False) for oid in (70_000, 70_001, PgType.TEXT))
    table = replace(T, columns=columns, key=())
    wal = Wal()
    frames = wal.transaction(
        wire.type_name(70_000, "int8", schema="pg_catalog"),
        wire.type_name(70_001, "mood"),
        wire.relation(table),
        wire.insert(table.oid, ["1", "ok", None]),
    )
    (use,) = writer(store, begin(store)).append(frames).relations
    assert use.relation.type_names == (
        NamedType(70_000, "pg_catalog.int8", PgType.INT8),
        NamedType(70_001, "public.mood"),
    )
    (link,) = Reader(store).walk(BEGINNING)
    assert link.header.relations == (use,)
