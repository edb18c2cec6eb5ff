"""What a numeric column's typmod says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import NumericSize, PgType, numeric_size


@given(st.integers(1, 1000), st.integers(-1000, 1000))
def test_numeric_size_reads_what_postgres_packs(precision: int, scale: int) -> None:
    typmod = ((precision << 16) | (scale & 0x7FF)) + 4
    assert numeric_size(typmod) == NumericSize(precision, scale)


def test_a_bare_numeric_has_no_size() -> None:
    assert numeric_size(-1) is None


def test_type_oids_are_those_that_postgres_fixes() -> None:
    assert all(0 < kind < 16_384 for kind in PgType)
    assert PgType(1700) is PgType.NUMERIC
