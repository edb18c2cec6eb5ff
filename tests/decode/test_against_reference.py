"""The decoder by the column gives what the plain one gives, for any stream."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.decode import OpenTransaction, TableChanges, arrow_schema, change_schema, decode
from tailrace.decode import decoder as decoder_module
from tailrace.model import ORIGIN, Lsn, Offset
from tailrace.postgres.pgoutput import parse_relation
from tests.decode.reference import ReferenceChanges, reference_decode
from tests.decode.streams import UNTIMED, Stream, streams

END = Offset.whole(1 << 62)


def comparable(value: object) -> object:
    """Floats compare by what they print, so that NaN equals itself and -0.0 does not equal 0.0."""
    if isinstance(value, float):
        return math.isnan(value) or repr(value)
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    return value


def assert_same(actual: list[TableChanges], expected: list[ReferenceChanges]) -> None:
    assert [each.relation for each in actual] == [each.relation for each in expected]
    for found, wanted in zip(actual, expected, strict=True):
        found.rows.validate(full=True)
        rows = found.rows.to_pylist()
        assert [comparable(row) for row in rows] == [comparable(row) for row in wanted.rows]


def known(stream: Stream) -> dict[str, Any]:
    return {"initial": stream.initial, "versions": stream.versions}


@UNTIMED
@given(
    streams(),
    st.sampled_from(["_PIECE_ROWS_MAX", "_PIECE_CELLS_MAX", "_PIECE_BYTES_MAX"]),
    st.sampled_from([1, 4, 100, 1 << 16]),
)
def test_decode_equals_reference_whatever_the_piece(
    stream: Stream, limit: str, limit_value: int
) -> None:
    whole = {"after": ORIGIN, "upto": END, **known(stream)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, limit, limit_value)
        found = decode(stream.to_frames(), **whole)
    assert_same(found, reference_decode(stream.to_frames(), **whole))
    for each in found:
        assert each.rows.schema == change_schema(each.relation)
        count = len(each.relation.columns)
        assert pa.schema(list(each.rows.schema)[:count]) == arrow_schema(each.relation)


_POSITIONS = st.builds(Offset, st.integers(0, 500).map(Lsn), st.integers(0, 9)) | st.builds(
    Offset.whole, st.integers(0, 500)
)


@UNTIMED
@given(streams(), _POSITIONS, _POSITIONS)
def test_only_changes_after_and_up_to_the_offsets_are_given(
    stream: Stream, one: Offset, other: Offset
) -> None:
    window = {"after": min(one, other), "upto": max(one, other), **known(stream)}
    frames = stream.to_frames()
    assert_same(decode(frames, **window), reference_decode(frames, **window))


@UNTIMED
@given(streams(), st.lists(_POSITIONS, max_size=4))
def test_windows_that_meet_give_every_change_once(stream: Stream, cuts: list[Offset]) -> None:
    borders = [ORIGIN, *sorted(cuts), END]
    frames = stream.to_frames()
    whole = decode(frames, after=ORIGIN, upto=END, **known(stream))
    parts = [
        change
        for after, upto in pairwise(borders)
        for change in decode(frames, after=after, upto=upto, **known(stream))
    ]
    assert _offsets(parts) == _offsets(whole)


def _offsets(changes: list[TableChanges]) -> list[tuple[int, int]]:
    return sorted(
        (row["_commit_lsn"], row["_ordinal"]) for each in changes for row in each.rows.to_pylist()
    )


@UNTIMED
@given(
    streams(),
    st.sets(st.sampled_from(["public.table_0", "public.table_1", "other"])) | st.none(),
    st.sets(st.sampled_from(["id", "Price", "c d", "missing"])) | st.none(),
)
def test_other_tables_and_columns_are_left_out(
    stream: Stream, tables: set[str] | None, columns: set[str] | None
) -> None:
    asked: dict[str, Any] = {"after": ORIGIN, "upto": END, **known(stream)}
    asked |= {"tables": tables, "columns": columns}
    found = decode(stream.to_frames(), **asked)
    assert_same(found, reference_decode(stream.to_frames(), **asked))
    for each in found:
        assert each.rows.schema == change_schema(each.relation, columns)


@UNTIMED
@given(streams(transactions_max=1, changes_max=12), st.data())
def test_a_part_of_a_huge_transaction_continues_its_ordinals(
    stream: Stream, data: st.DataObject
) -> None:
    frames = stream.to_frames()
    cut = data.draw(st.integers(0, len(frames)))
    counts = frames.change_counts()
    ends = frames.transactions
    found: list[TableChanges] = []
    for part, before in ((frames.slice(0, cut), 0), (frames.slice(cut, len(frames)), cut)):
        if not len(part) or not len(ends.end_lsn):
            continue
        owner = OpenTransaction(
            Lsn(ends.end_lsn[0]), int(ends.commit_ts_us[0]), 7, int(counts[:before].sum())
        )
        asked: dict[str, Any] = {"after": ORIGIN, "upto": END, **_known_at(stream, before)}
        asked["open_transaction"] = owner
        changes = decode(part, **asked)
        assert_same(changes, reference_decode(part, **asked))
        found += changes
    whole = decode(frames, after=ORIGIN, upto=END, **known(stream))
    assert _offsets(found) == _offsets(whole)


def _known_at(stream: Stream, frame: int) -> dict[str, Any]:
    """What is in force when this frame comes: the part before it has told some of it."""
    in_force = dict(stream.initial)
    for each in stream.frames[:frame]:
        if each[:1] == b"R":
            relation = stream.versions.get(each) or parse_relation(each)
            in_force[relation.oid] = relation
    return {"initial": in_force, "versions": stream.versions}
