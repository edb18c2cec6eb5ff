"""Offsets: the one order, and the text that Spark compares."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given

from tailrace.model import ORDINAL_MAX, ORIGIN, Lsn, Offset
from tests.model.values import lsns, offsets


@given(offsets())
def test_every_spelling_reads_back(offset: Offset) -> None:
    assert Offset.parse(str(offset)) == offset
    assert Offset.from_json(offset.to_json()) == offset
    assert Offset.from_dict(offset.to_dict()) == offset
    assert pickle.loads(pickle.dumps(offset)) == offset


@given(offsets(), offsets())
def test_commits_come_first_and_ordinals_second(one: Offset, other: Offset) -> None:
    by_hand = (int(one.commit_lsn), one.ordinal) < (int(other.commit_lsn), other.ordinal)
    assert (one < other) == by_hand


@given(offsets(), lsns())
def test_a_whole_position_includes_what_ends_at_or_before_it(offset: Offset, lsn: Lsn) -> None:
    assert (offset <= Offset.whole(lsn)) == (offset.commit_lsn <= lsn)


def test_spark_is_given_the_same_text_each_time() -> None:
    offset = Offset(Lsn(0x16B3748), 3)
    assert offset.to_json() == '{"v":1,"lsn":23803720,"ord":3}'
    assert list(offset.to_dict()) == ["v", "lsn", "ord"]
    assert json.dumps(offset.to_dict(), separators=(",", ":")) == offset.to_json()


@given(offsets())
def test_the_text_is_canonical(offset: Offset) -> None:
    assert Offset.from_json(offset.to_json()).to_json() == offset.to_json()
    assert Offset.from_json(json.dumps(json.loads(offset.to_json()), indent=1)) == offset


def test_the_origin_is_before_every_change() -> None:
    assert Offset(Lsn(1), 0) > ORIGIN
    assert ORIGIN.is_whole


@pytest.mark.parametrize("text", ["", ":", "0/1:", "0/1:-1", "0/1:x", f"0/1:{ORDINAL_MAX + 1}"])
def test_nothing_else_is_read_as_an_offset(text: str) -> None:
    with pytest.raises(ValueError):
        Offset.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"v":1}',
        '{"v":2,"lsn":1,"ord":1}',
        '{"v":1,"lsn":1.5,"ord":1}',
        '{"v":1,"lsn":"1","ord":1}',
        '{"v":1,"lsn":1,"ord":-1}',
        '{"v":1,"lsn":-1,"ord":0}',
    ],
)
def test_nothing_else_is_read_as_stored_offset(text: str) -> None:
    with pytest.raises(ValueError):
        Offset.from_json(text)
