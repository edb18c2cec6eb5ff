"""Bases: complete or not there, the newest counts, and no damage goes unnoticed."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given

from tailrace.errors import LogError, SegmentCorrupt
from tailrace.log import Base, BaseOrigin, BasePart, layout
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import (
    delete_unfinished,
    newest_bases,
    newest_positions,
    put_base,
    put_base_part,
    read_base_part,
)
from tailrace.log.old_bases import OUTDONE_AGE_S, old_base_keys
from tailrace.model import Lsn, NamedType, Relation
from tailrace.postgres.pgoutput import parse_relation, relation_frame
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.making import SOURCE, shape
from tests.model.values import relations

TABLE = shape(16_400, "id", "note")
POSITION = Lsn(0x2000)


def identity(position: Lsn = POSITION, writer: str = "writer") -> BaseIdentity:
    return BaseIdentity(SOURCE, TABLE.oid, position, writer)


def rows(*lines: bytes) -> pa.BinaryArray:
    return pa.array(lines, pa.binary())


def base(*parts: BasePart, position: Lsn = POSITION) -> Base:
    return Base(
        source=SOURCE,
        relation=replace(TABLE, type_names=(NamedType(70_000, "mood"),)),
        frame=wire.relation(TABLE),
        position=position,
        taken_ts_us=836_000_000_000_000,
        origin=BaseOrigin.SNAPSHOT,
        parts=parts,
    )


def put_whole(store: Store, position: Lsn = POSITION) -> Base:
    at = identity(position)
    first = put_base_part(store, at, rows(b"1\ta", b"2\t\\N"), stretch=0, number=0)
    second = put_base_part(store, at, rows(b"3\tb"), stretch=1, number=0)
    made = base(first, second, position=position)
    put_base(store, made)
    return made


def test_a_base_reads_back_as_it_was_put() -> None:
    store = MemoryStore()
    made = put_whole(store)
    assert newest_bases(store) == {TABLE.oid: made}
    assert made.row_count == 3
    found = [line for part in made.parts for line in read_base_part(store, part).to_pylist()]
    assert found == [b"1\ta", b"2\t\\N", b"3\tb"]


def test_a_base_does_not_exist_before_its_last_object() -> None:
    store = MemoryStore()
    put_base_part(store, identity(), rows(b"1\ta"), stretch=0, number=0)
    assert newest_bases(store) == {}


def test_the_newest_complete_base_counts() -> None:
    store = MemoryStore()
    put_whole(store, Lsn(0x3000))
    put_whole(store, Lsn(0x2000))
    put_base_part(store, identity(Lsn(0x4000)), rows(b"1\ta"), stretch=0, number=0)
    assert newest_positions(store) == {TABLE.oid: Lsn(0x3000)}


def test_a_part_that_is_put_again_is_taken_for_our_own() -> None:
    store = MemoryStore()
    first = put_base_part(store, identity(), rows(b"1\ta"), stretch=0, number=0)
    assert put_base_part(store, identity(), rows(b"1\ta"), stretch=0, number=0) == first


@pytest.mark.parametrize(
    ("writer", "line"), [("another", b"1\ta"), ("writer", b"1\tb")], ids=["writer", "rows"]
)
def test_a_part_that_differs_is_never_taken_for_our_own(writer: str, line: bytes) -> None:
    store = MemoryStore()
    put_base_part(store, identity(), rows(b"1\ta"), stretch=0, number=0)
    with pytest.raises(LogError, match="made by another") as caught:
        put_base_part(store, identity(writer=writer), rows(line), stretch=0, number=0)
    assert caught.value.retry


def test_two_bases_of_one_position_do_not_mix() -> None:
    store = MemoryStore()
    put_base(store, base())
    put_base(store, base())
    with pytest.raises(LogError, match="made by another"):
        put_base(store, replace(base(), taken_ts_us=1))


def test_a_flipped_bit_in_a_part_is_found() -> None:
    store = MemoryStore()
    part = put_base_part(store, identity(), rows(b"1\t" + b"a" * 40), stretch=0, number=0)
    sound = store.get(part.key)
    missed = []
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 0x10
        store.delete([part.key])
        store.put_new(part.key, bytes(damaged))
        try:
            if read_base_part(store, part).to_pylist() != [b"1\t" + b"a" * 40]:
                missed.append(place)
        except LogError:
            pass
    assert missed == []


@pytest.mark.parametrize("is_regular", [True, False])
def test_a_part_is_compressed_if_that_saves_half(is_regular: bool) -> None:
    random = Random(7)
    notes = [b"paid" * 8 if is_regular else random.randbytes(32) for _ in range(99)]
    lines = [b"%d\t%s" % (number, note) for number, note in enumerate(notes)]
    store = MemoryStore()
    part = put_base_part(store, identity(), rows(*lines), stretch=0, number=0)
    assert read_base_part(store, part).to_pylist() == lines
    assert (len(store.get(part.key)) < part.data_bytes) == is_regular


def test_a_part_under_another_name_is_refused() -> None:
    store = MemoryStore()
    part = put_base_part(store, identity(), rows(b"1\ta"), stretch=0, number=0)
    moved = replace(part, key=layout.base_part_key(TABLE.oid, POSITION, 1, 0))
    store.put_new(moved.key, store.get(part.key))
    with pytest.raises(SegmentCorrupt, match="holds another part"):
        read_base_part(store, moved)


def test_a_damaged_base_is_refused() -> None:
    store = MemoryStore()
    text = base().to_json().replace(b"836000000000000", b"836000000000001")
    store.put_new(base().key, text)
    with pytest.raises(SegmentCorrupt, match="damaged"):
        newest_bases(store)


def test_what_an_unfinished_base_left_goes_when_a_newer_one_is_complete() -> None:
    store = MemoryStore()
    old = put_whole(store, Lsn(0x1000))
    left = put_base_part(store, identity(Lsn(0x2000)), rows(b"1\ta"), stretch=0, number=0)
    under_way = put_base_part(store, identity(Lsn(0x4000)), rows(b"1\ta"), stretch=0, number=0)
    delete_unfinished(store, [TABLE.oid])
    assert left.key in [entry.key for entry in store.list("")]
    new = put_whole(store, Lsn(0x3000))
    delete_unfinished(store, [TABLE.oid])
    kept = {old.key, new.key, under_way.key, *(part.key for part in (*old.parts, *new.parts))}
    # The older complete one may still be read: retention decides about it.
    assert {entry.key for entry in store.list("")} == kept - {left.key}


def test_parts_that_a_fold_names_stay_when_the_base_that_they_lie_with_is_gone() -> None:
    store = MemoryStore()
    old = put_whole(store, Lsn(0x1000))
    fold = replace(base(*old.parts, position=Lsn(0x3000)), folded_from=Lsn(0x1000))
    put_base(store, fold)
    left = put_base_part(store, identity(Lsn(0x2000)), rows(b"1\ta"), stretch=0, number=0)
    # Hours later: the older base is outdone, but for its parts, which the fold still needs.
    store.delete(list(old_base_keys(store, now_s=time.time() + OUTDONE_AGE_S + 60)))
    assert old.key not in [entry.key for entry in store.list("")]
    delete_unfinished(store, [TABLE.oid])
    assert (
        sum(len(read_base_part(store, part)) for part in newest_bases(store)[TABLE.oid].parts) == 3
    )
    assert left.key not in [entry.key for entry in store.list("")]


def test_an_empty_table_has_a_base_without_parts() -> None:
    store = MemoryStore()
    put_base(store, replace(base(), origin=BaseOrigin.EMPTY))
    assert newest_bases(store)[TABLE.oid].row_count == 0


@given(relations())
def test_a_relation_frame_of_ours_is_that_of_postgres(relation: Relation) -> None:
    frame = relation_frame(relation)
    assert frame == wire.relation(relation)
    assert parse_relation(frame).columns == relation.columns
