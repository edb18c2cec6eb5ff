"""Neighbouring segments decoded as one give what each of them gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from tailrace.decode import decode
from tailrace.log import Reader, Segment, Tip, Writer
from tailrace.log.neighbours import joined
from tailrace.log.plan import Piece, fetch, pieces
from tailrace.model import Offset, Relation
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.making import (
    BEGINNING,
    SOURCE,
    Clock,
    Wal,
    anything,
    begin,
    begin_writer,
    between,
    changes_of,
    merge_all,
    put_in_parts,
    shape,
)

T, U = shape(), shape(16_401)
WIDER = shape(T.oid, "id", "note")


def _found(store: Store, after: Offset, upto: Offset) -> list[tuple[Piece, Segment]]:
    planned = pieces(Reader(store), after, upto, wanted=anything)
    return [each for piece in planned for each in fetch(store, piece, wanted=anything)]


def _joined(
    store: Store, after: Offset, upto: Offset, bytes_max: int = 1 << 20
) -> list[tuple[Piece, Segment]]:
    return list(joined(_found(store, after, upto), bytes_max=bytes_max))


def _rows(found: list[tuple[Piece, Segment]]) -> list[tuple[int, int, Relation, str]]:
    """Every change of pieces without parts, with the shape that it was decoded under."""
    rows = [
        (row["_commit_lsn"], row["_ordinal"], changes.relation, row["id"])
        for piece, segment in found
        if piece.part is None
        for changes in decode(
            segment.frames,
            initial=segment.header.initial,
            versions=segment.header.versions,
            after=piece.after,
            upto=piece.upto,
        )
        for row in changes.rows.to_pylist()
    ]
    return sorted(rows, key=lambda row: row[:2])


def _described(key: tuple[str, ...], relations: Sequence[Relation]) -> Sequence[Relation]:
    return [replace(each, key=key) for each in relations]


def _mixed_log(random: Random) -> tuple[MemoryStore, Wal]:
    """Tables come and go, shapes change, a transaction has parts, some segments are merged."""
    clock = Clock()
    store, wal = MemoryStore(clock=clock), Wal()
    to = begin_writer(store)
    to.append(wal.transaction(wire.relation(T), wal.row(T), wire.relation(U), wal.row(U)))
    in_force = T
    for number in range(24):
        match random.randrange(6):
            case 0:
                in_force = random.choice([T, WIDER])
                to.append(wal.rows(in_force, 2))
            case 1:
                to.append(wal.transaction(wire.relation(in_force)))
            case 2:
                put_in_parts(to, wal.rows(in_force, 4), 3)
            case 3:
                to.append(wal.transaction(wal.row(U), wal.row(in_force)))
            case _:
                to.append(wal.rows(in_force, random.randint(1, 3), announce=False))
        if number == 12 and random.random() < 0.5:
            merge_all(store, clock)
    return store, wal


@pytest.mark.parametrize("seed", range(12))
def test_joined_pieces_hold_the_same_changes_under_the_same_shapes(seed: int) -> None:
    random = Random(seed)
    store, wal = _mixed_log(random)
    places = [BEGINNING, *(offset for offset, _ in wal.changes), Offset.whole(wal.end)]
    for _ in range(8):
        after, upto = sorted(random.sample(places, 2))
        alone = _found(store, after, upto)
        together = _joined(store, after, upto, random.choice([200, 1 << 20]))
        assert [change for each in together for change in changes_of(*each)] == between(
            wal.changes, after, upto
        )
        assert _rows(together) == _rows(alone)


def test_neighbours_are_one_up_to_the_limit() -> None:
    store, wal = MemoryStore(), Wal()
    to = begin_writer(store)
    for _ in range(6):
        to.append(wal.rows(T, 2))
    end = Offset.whole(wal.end)
    size = _found(store, BEGINNING, end)[0][1].header.data_bytes
    assert [len(_joined(store, BEGINNING, end, size * count + 9)) for count in (1, 2, 6)] == [
        6,
        3,
        1,
    ]
    [(piece, _)] = _joined(store, BEGINNING, end)
    assert (piece.after, piece.upto) == (BEGINNING, end)


def test_parts_and_what_does_not_follow_are_decoded_apart() -> None:
    store, wal = MemoryStore(), Wal()
    to = begin_writer(store)
    to.append(wal.rows(T, 2))
    put_in_parts(to, wal.rows(T, 4), 3)
    to.append(wal.rows(T, 2))
    to.append(wal.transaction(wire.relation(U)))  # nothing to read: left out
    to.append(wal.rows(T, 2))
    found = _found(store, BEGINNING, Offset.whole(wal.end))
    assert list(joined(found, bytes_max=1 << 20)) == found


def test_what_the_catalog_said_at_two_times_is_decoded_apart() -> None:
    store, wal = MemoryStore(), Wal()
    tip = begin(store)
    for name in ("id", "other"):
        to = Writer(store, tip, writer_id=f"w{name}", describe=partial(_described, (name,)))
        for _ in range(2):
            to.append(wal.rows(T))
        tip = Tip(SOURCE, to.segment_end, to.position)
    together = _joined(store, BEGINNING, Offset.whole(wal.end))
    assert [{relation.key for _, _, relation, _ in _rows([each])} for each in together] == [
        {("id",)},
        {("other",)},
    ]
