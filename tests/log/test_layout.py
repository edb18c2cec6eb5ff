"""Names: they sort as the log does, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SegmentCorrupt
from tailrace.log import layout
from tailrace.log.layout import FrontierKind
from tailrace.log.ranges import Ranges
from tailrace.model import Lsn
from tailrace.storage.store import is_key
from tests.model.values import lsns


@given(lsns(), lsns())
def test_positions_are_read_back_from_names(start: Lsn, end: Lsn) -> None:
    keys = [
        layout.segment_key(start),
        layout.merged_key(start, end),
        layout.part_key(start, "0123456789abcdef", 7),
        layout.progress_key(start),
        layout.frontier_key(FrontierKind.MERGED, start),
        layout.reader_key("lake", start),
    ]
    assert all(is_key(key) for key in keys)
    assert {layout.position_of(key) for key in keys} == {start}
    assert layout.range_of(layout.merged_key(start, end)) == (start, end)


@given(lsns(), lsns())
def test_segments_sort_by_where_they_start(one: Lsn, other: Lsn) -> None:
    assert (one < other) == (layout.segment_key(one) < layout.segment_key(other))


@pytest.mark.parametrize(
    "name", ["README", "x.arrow", "0.arrow", "00000000016b3748.arrow", "000000000000000000.arrow"]
)
def test_a_strange_name_is_damage_and_no_crash(name: str) -> None:
    with pytest.raises(SegmentCorrupt, match=name):
        layout.position_of(f"segments/{name}")


@pytest.mark.parametrize("name", ["0000000000000001.arrow", "0000000000000001-x.arrow", "x"])
def test_a_merged_name_has_two_positions(name: str) -> None:
    with pytest.raises(SegmentCorrupt):
        layout.range_of(f"merged/{name}")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))), st.integers(0, 31))
def test_a_range_around_a_position_is_found_if_there_is_one(
    pairs: list[tuple[int, int]], position: int
) -> None:
    ranges = [(Lsn(a), Lsn(b)) for a, b in pairs]
    found = Ranges(ranges).around(Lsn(position))
    if found is None:
        assert not any(start <= position < end for start, end in ranges)
    else:
        assert found in ranges and found[0] <= position < found[1]
