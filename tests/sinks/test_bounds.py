"""Literals of key ranges: only those that every engine reads the same way."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from tailrace.sinks.delta.bounds import first_column_bounds, quote


def bounds(*values: object, kind: pa.DataType) -> str | None:
    return first_column_bounds(pa.table({"k": pa.array(values, kind)}), alias="t.")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, -5, 4], pa.int64(), "t.`k` >= -5 AND t.`k` <= 4"),
        ([7], pa.int16(), "t.`k` >= 7 AND t.`k` <= 7"),
        (["b", "a"], pa.string(), "t.`k` >= 'a' AND t.`k` <= 'b'"),
        (
            [date(2026, 1, 15)],
            pa.date32(),
            "t.`k` >= CAST('2026-01-15' AS DATE) AND t.`k` <= CAST('2026-01-15' AS DATE)",
        ),
    ],
)
def test_range_of_plain_keys(values: list[object], kind: pa.DataType, expected: str) -> None:
    assert bounds(*values, kind=kind) == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], pa.int64()),
        ([-(1 << 63)], pa.int64()),
        (["it's"], pa.string()),
        (["a\\b"], pa.string()),
        (["ü"], pa.string()),
        (["a\nb"], pa.string()),
        (["x" * 513], pa.string()),
        ([b"a"], pa.binary()),
        ([1.5], pa.float64()),
    ],
)
def test_no_literal_where_engines_could_differ(values: list[object], kind: pa.DataType) -> None:
    assert bounds(*values, kind=kind) is None


def test_no_literal_for_a_day_that_cannot_be_written() -> None:
    days = pa.array([1 << 30], pa.int32()).cast(pa.date32())
    assert first_column_bounds(pa.table({"k": days})) is None


def test_f107_identifiers_are_quoted() -> None:
    assert quote("a`b; DROP") == "`a``b; DROP`"
