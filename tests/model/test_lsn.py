"""Positions: their order, their spellings, their eras."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import Lsn
from tailrace.model.lsn import ERA_MAX, WAL_MASK
from tests.model.values import lsns


@given(lsns())
def test_every_spelling_reads_back(lsn: Lsn) -> None:
    assert Lsn.parse(str(lsn)) == lsn
    assert Lsn.from_hex16(lsn.hex16) == lsn
    assert Lsn.of(lsn.wal, era=lsn.era) == lsn
    assert pickle.loads(pickle.dumps(lsn)) == lsn
    assert str(pickle.loads(pickle.dumps(lsn))) == str(lsn)


@given(lsns(), lsns())
def test_names_sort_as_positions_do(one: Lsn, other: Lsn) -> None:
    assert (one < other) == (one.hex16 < other.hex16)


@given(st.integers(0, WAL_MASK), st.integers(0, WAL_MASK), st.integers(0, ERA_MAX - 1))
def test_a_later_era_is_after_every_position_of_the_one_before(a: int, b: int, era: int) -> None:
    assert Lsn.of(a, era=era) < Lsn.of(b, era=era + 1)


def test_the_highest_position_fits_a_signed_long() -> None:
    assert Lsn.of(WAL_MASK, era=ERA_MAX) == (1 << 63) - 1


def test_it_prints_as_postgres_prints_it() -> None:
    assert str(Lsn(0x16B3748)) == "0/16B3748"
    assert f"{Lsn(0xA_0000_00FF)}" == "A/FF"
    assert str(Lsn.of(0x16B3748, era=2)) == "2@0/16B3748"


@pytest.mark.parametrize(
    "text", ["", "0", "0/", "/0", "0/0/0", "g/0", "123456789/0", "128@0/0", " 0/0", "0/0\n", "-1/0"]
)
def test_nothing_else_is_read_as_a_position(text: str) -> None:
    with pytest.raises(ValueError):
        Lsn.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0x00000000000001", "00000000016b3748", "+000000000000001", "0" * 17, "0_" * 8],
)
def test_object_names_hold_sixteen_upper_case_digits(text: str) -> None:
    with pytest.raises(ValueError):
        Lsn.from_hex16(text)


@pytest.mark.parametrize(("wal", "era"), [(-1, 0), (WAL_MASK + 1, 0), (0, -1), (0, ERA_MAX + 1)])
def test_positions_out_of_range_are_refused(wal: int, era: int) -> None:
    with pytest.raises(ValueError):
        Lsn.of(wal, era=era)
