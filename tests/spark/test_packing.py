"""What is packed on the executors is on the driver what was decoded: in order, with its range."""

from __future__ import annotations

import weakref
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.decode import TableChanges, change_schema
from tailrace.model import Column, Lsn, Offset, PgType, Relation
from tailrace.spark.packing import Unpacked, changes_row, range_row, unpack
from tests.spark.made_log import ITEMS, ORDERS

AFTER, UPTO = Offset.whole(Lsn(0x1000)), Offset(Lsn(0x2000), 7)


def _changes(relation: Relation, *offsets: tuple[int, int]) -> TableChanges:
    schema = change_schema(relation)
    rows = [
        {
            **dict.fromkeys(schema.names),
            "note": "x" * ordinal,
            "_commit_lsn": lsn,
            "_ordinal": ordinal,
        }
        for lsn, ordinal in offsets
    ]
    return TableChanges(relation, pa.Table.from_pylist(rows, schema=schema))


def _packed(*rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(rows)


def _offsets(changes: TableChanges) -> list[tuple[int, int]]:
    columns = (changes.rows[name].to_pylist() for name in ("_commit_lsn", "_ordinal"))
    return list(zip(*columns, strict=True))


def test_range_is_told_when_there_is_no_change() -> None:
    assert unpack(_packed(range_row(AFTER, UPTO))) == Unpacked(AFTER, UPTO, ())


@settings(deadline=None)
@given(
    counts=st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_tables_are_in_offset_order_whatever_order_tasks_answer_in(
    counts: list[tuple[bool, int]], seed: int
) -> None:
    rows = [range_row(AFTER, UPTO)]
    expected: dict[str, list[tuple[int, int]]] = {}
    offset = 0
    for is_item, count in counts:
        relation = ITEMS if is_item else ORDERS
        # Pieces of one transaction differ by their ordinals alone.
        offsets = [(0x1000 + (offset + n) // 3, (offset + n) % 3) for n in range(count)]
        offset += count
        rows.append(changes_row(_changes(relation, *offsets)))
        expected.setdefault(relation.qualified, []).extend(offsets)
    Random(seed).shuffle(rows)

    found = unpack(_packed(*rows))

    assert (found.after, found.upto) == (AFTER, UPTO)
    assert {each.relation.qualified: _offsets(each) for each in found.tables} == expected


def test_values_and_shape_survive() -> None:
    changes = _changes(ORDERS, (0x1001, 0), (0x1001, 5))
    found = unpack(_packed(changes_row(changes), range_row(AFTER, UPTO))).tables
    assert [each.relation for each in found] == [ORDERS]
    assert found[0].rows.equals(changes.rows)


def test_values_that_repeat_take_little_room_on_the_way() -> None:
    large = _changes(ORDERS, *((0x1001, 1_000) for _ in range(1_000)))
    packed = _packed(range_row(AFTER, UPTO), changes_row(large))
    assert packed.nbytes < large.rows.nbytes / 20
    assert unpack(packed).tables[0].rows.equals(large.rows)


def test_streams_share_what_they_unpack_for_as_long_as_one_of_them_has_it() -> None:
    row, other = (changes_row(_changes(ORDERS, (0x1001, n))) for n in (1, 2))
    first = unpack(_packed(range_row(AFTER, UPTO), row))
    again = unpack(_packed(range_row(AFTER, UPTO), row, other))
    assert first.pieces[0].rows is again.pieces[0].rows
    assert _offsets(again.tables[0]) == [(0x1001, 1), (0x1001, 2)]
    gone = weakref.ref(first.pieces[0].rows)
    del first, again
    assert gone() is None


def test_two_shapes_of_a_table_in_one_batch_are_a_bug() -> None:
    added = Column("added", PgType.TEXT, -1, False)
    other = replace(ORDERS, columns=(*ORDERS.columns, added))
    rows = [changes_row(_changes(relation, (0x1001, 0))) for relation in (ORDERS, other)]
    with pytest.raises(AssertionError, match="two shapes"):
        unpack(_packed(range_row(AFTER, UPTO), *rows))


def test_batch_without_a_range_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="range"):
        unpack(_packed(changes_row(_changes(ORDERS, (0x1001, 0)))))
