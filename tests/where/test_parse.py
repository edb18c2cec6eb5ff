"""A where is understood as a whole, or refused with the place at which it is not."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.where import columns_of, parse_where
from tailrace.where.parse import DEPTH_MAX
from tailrace.where.predicate import And, Comparison, IsNull, Like, Not, Operator, Or

PAID = Comparison("status", Operator.EQUAL, "paid")
LARGE = Comparison("amount", Operator.GREATER_EQUAL, Decimal("10.50"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status = 'paid'", PAID),
        ("STATUS='paid'", PAID),
        ("'paid' = status", PAID),
        ("10.50 <= amount", LARGE),
        ('"Say ""x""" = \'it\'\'s\'', Comparison('Say "x"', Operator.EQUAL, "it's")),
        ("a != -1e3", Comparison("a", Operator.UNEQUAL, Decimal("-1e3"))),
        ("status = 'paid' AND amount >= 10.50", And((PAID, LARGE))),
        (
            "status = 'paid' or amount >= 10.50 and note is null",
            Or((PAID, And((LARGE, IsNull("note"))))),
        ),
        ("not (status = 'paid')", Not(PAID)),
        ("NOT NOT status = 'paid'", PAID),
        ("note IS NOT NULL", Not(IsNull("note"))),
        ("a IN ('x')", Or((Comparison("a", Operator.EQUAL, "x"),))),
        ("note NOT LIKE 'a%'", Not(Like("note", "a%", False))),
        ("note ilike 'A_'", Like("note", "A_", True)),
        ("active", Comparison("active", Operator.EQUAL, True)),
        (
            "NOT active AND größe = false",
            And(
                (
                    Not(Comparison("active", Operator.EQUAL, True)),
                    Comparison("größe", Operator.EQUAL, False),
                )
            ),
        ),
        (
            "a BETWEEN 1 AND 2 AND b = 3",
            And(
                (
                    And(
                        (
                            Comparison("a", Operator.GREATER_EQUAL, Decimal(1)),
                            Comparison("a", Operator.LESS_EQUAL, Decimal(2)),
                        )
                    ),
                    Comparison("b", Operator.EQUAL, Decimal(3)),
                )
            ),
        ),
    ],
)
def test_where_is_read(text: str, expected: object) -> None:
    assert parse_where(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends too early"),
        ("status =", "ends too early"),
        ("status = 'paid' AND", "ends too early"),
        ("status = 'paid", "at character 10"),
        ("1=1) OR (1=1", "cannot be understood at character 3"),
        ("a = 1; DROP TABLE x", "at character 6"),
        ("a = 1 -- b", "at character 7"),
        ("a = b", "cannot be understood at character 5"),
        ("a = NULL", "compares with NULL at character 5"),
        ("upper(a) = 'X'", "cannot be understood at character 6"),
        ("a = (SELECT 1)", "cannot be understood at character 5"),
        ("a IN ()", "cannot be understood at character 7"),
        ("a BETWEEN 1 OR 2", "lacks AND after BETWEEN"),
        ("a IS 1", "lacks NULL after IS"),
        ("(a = 1", r"lacks \) after \("),
        ("a NOT 1", "cannot be understood"),
        ("select = 1 = 2", "cannot be understood at character 12"),
        ("a = 1 b", "cannot be understood at character 7"),
        ("a" * 20_000, "too long"),
    ],
)
def test_f109_anything_else_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_where(text)


def test_f118_deep_nesting_is_refused_and_not_recursed() -> None:
    depth = DEPTH_MAX - 2
    assert parse_where(f"{'(' * depth}a = 1{')' * depth}")
    with pytest.raises(ConfigError, match="nested too deep"):
        parse_where(f"{'(' * 4000}a = 1{')' * 4000}")
    assert parse_where(f"{'NOT ' * 1000}a = 1")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        columns_of(parse_where(text))


def test_columns_that_decide_are_known() -> None:
    assert columns_of(parse_where("a = 1 AND (b IS NULL OR NOT c LIKE 'x')")) == {"a", "b", "c"}
