"""Which shape each row is decoded with, against a reader that goes frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.log import Header, RelationUse, Writer, layout, segment
from tailrace.log.relations import join_uses
from tailrace.model import Offset, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import parse_relation, parse_truncate
from tailrace.storage import MemoryStore
from tests.decode import wire
from tests.log.making import Wal, begin, begin_writer, put_in_parts, shape

TABLES = (16_400, 16_401)
SHAPES = [shape(oid, *columns) for oid in TABLES for columns in (("id",), ("id", "note"))]

Step = tuple[str, int]
STEPS = st.tuples(st.sampled_from(["row", "shape", "truncate"]), st.integers(0, 3))
TRANSACTIONS = st.lists(
    st.tuples(st.lists(STEPS, max_size=5), st.sampled_from(["segment", "same", "parts"])),
    min_size=1,
    max_size=6,
)


def _frames(wal: Wal, steps: list[Step], in_force: dict[int, Relation]) -> list[bytes]:
    frames = []
    for what, number in steps:
        oid = TABLES[number % 2]
        if what == "shape" or oid not in in_force:
            in_force[oid] = SHAPES[(number % 2) * 2 + number // 2]
            frames.append(wire.relation(in_force[oid]))
        if what == "row":
            frames.append(wal.row(in_force[oid]))
        elif what == "truncate":
            frames.append(wire.truncate(*sorted(in_force)))
    return frames


def _by_hand(
    frames: list[bytes], end: int, in_force: dict[int, Relation]
) -> list[tuple[Relation, Offset]]:
    """The shape and the offset of the frame for each change, one frame after the other."""
    found, ordinal = [], 0
    for frame in frames:
        if frame[:1] == b"R":
            relation = parse_relation(frame)
            in_force[relation.oid] = relation
        oids = parse_truncate(frame) if frame[:1] == b"T" else ()
        if frame[:1] == b"I":
            oids = (int.from_bytes(frame[1:5], "big"),)
        found += [(in_force[oid], Offset(Offset.whole(end).commit_lsn, ordinal)) for oid in oids]
        ordinal += len(oids)
    return found


def _uses_by_hand(changes: list[tuple[Relation, Offset]]) -> list[tuple[Relation, Offset, int]]:
    """Successive changes of one table under one shape, by table."""
    uses: list[tuple[Relation, Offset, int]] = []
    for oid in TABLES:
        last = len(uses)
        for relation, offset in changes:
            if relation.oid != oid:
                continue
            if len(uses) > last and uses[-1][0] == relation:
                uses[-1] = (relation, uses[-1][1], uses[-1][2] + 1)
            else:
                uses.append((relation, offset, 1))
    return uses


def _told(header: Header) -> list[tuple[Relation, Offset, int]]:
    return [(use.relation, use.since, use.change_count) for use in header.relations]


@settings(max_examples=40)
@given(TRANSACTIONS)
def test_headers_tell_each_shape_from_where_it_begins(
    made: list[tuple[list[Step], str]],
) -> None:
    store, wal = MemoryStore(), Wal()
    to = begin_writer(store)
    sent: dict[int, Relation] = {}
    followed: dict[int, Relation] = {}
    waiting: list[Frames] = []
    expected: list[tuple[Relation, Offset]] = []

    def seal() -> None:
        if waiting:
            header = to.append(Frames.concat(waiting))
            assert _told(header) == _uses_by_hand(expected)
            assert segment.read(store, layout.segment_key(header.start)).header == header
            waiting.clear()
            expected.clear()

    for steps, how in made:
        frames = _frames(wal, steps, sent)
        transaction = wal.transaction(*frames)
        if how == "parts":
            seal()
            cuts = range(1, len(transaction) - 1)
            header = put_in_parts(to, transaction, *cuts)
            assert _told(header) == _uses_by_hand(_by_hand(frames, wal.end, followed))
            continue
        waiting.append(transaction)
        expected += _by_hand(frames, wal.end, followed)
        if how == "segment":
            seal()
    seal()


def _use(relation: Relation, ordinal: int, *, initial: bool) -> RelationUse:
    since = Offset(Offset.whole(1).commit_lsn, ordinal)
    return RelationUse(wire.relation(relation), relation, since, 1, initial)


def test_key_that_the_frame_does_not_say_is_asked_for_whenever_the_frame_comes() -> None:
    store, wal, key = MemoryStore(), Wal(), ["a"]
    whole = replace(shape(16_400, "a", "b"), identity=ReplicaIdentity.FULL)

    def describe(relations: Sequence[Relation]) -> list[Relation]:
        return [replace(relation, key=tuple(key)) for relation in relations]

    to = Writer(store, begin(store), writer_id="writer", describe=describe)
    to.append(wal.transaction(wire.relation(whole), wal.row(whole)))
    key[0] = "b"
    header = to.append(wal.transaction(wal.row(whole), wire.relation(whole), wal.row(whole)))
    assert [use.relation.key for use in header.relations] == [("a",), ("b",)]
    wanted = {whole.oid: replace(whole, key=("a",))}
    read = segment.read(store, layout.segment_key(header.start)).header
    assert (read.initial, [*read.versions.values()]) == (wanted, [replace(whole, key=("b",))])


def test_joined_uses_keep_every_change_of_shape() -> None:
    one, other = SHAPES[0], SHAPES[1]
    joined = join_uses(
        [
            [_use(one, 0, initial=True)],
            [_use(one, 1, initial=True), _use(other, 2, initial=False)],
            [_use(other, 3, initial=True), _use(one, 4, initial=False)],
        ]
    )
    told = [(use.relation, use.since.ordinal, use.change_count, use.initial) for use in joined]
    assert told == [(one, 0, 2, True), (other, 2, 2, False), (one, 4, 1, False)]


def test_only_the_first_use_of_a_table_can_be_the_initial_one() -> None:
    one, other = SHAPES[0], SHAPES[1]
    joined = join_uses([[_use(one, 0, initial=True)], [_use(other, 1, initial=True)]])
    assert [(use.relation, use.initial) for use in joined] == [(one, True), (other, False)]
