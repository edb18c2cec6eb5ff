"""Table patterns: what they match, and what they refuse."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.postgres.pattern import TablePattern
from tests.postgres.names import IDENTIFIERS


@pytest.mark.parametrize(
    ("pattern", "schema", "table", "expected"),
    [
        ("public.*", "public", "orders", True),
        ("public.*", "publix", "orders", False),
        ("public.orders", "public", "orders", True),
        ("public.orders", "public", "orders_old", False),
        ("public.Orders", "public", "orders", False),
        ("public.a_c", "public", "abc", False),
        ("public.a%", "public", "ab", False),
        ("public.item_?", "public", "item_7", True),
        ("public.item_?", "public", "item_77", False),
        ("*.*", "a.b", "c", True),
        ('"My.Schema".*', "My.Schema", "x", True),
        ('public."a*"', "public", "ab", False),
        ('public."a*"', "public", "a*", True),
        ('public."a""b"', "public", 'a"b', True),
        ("public.a+b", "public", "aab", False),
    ],
)
def test_f107_only_star_and_question_mark_are_wild(
    pattern: str, schema: str, table: str, expected: bool
) -> None:
    assert TablePattern.parse(pattern).matches(schema, table) is expected


@pytest.mark.parametrize("text", ["", "orders", "a.b.c", ".", "a.", ".b", 'a."b', 'a"b.c', '"".x'])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a table pattern"):
        TablePattern.parse(text)


@given(schema=IDENTIFIERS, table=IDENTIFIERS, other=IDENTIFIERS)
def test_f107_quoted_names_match_themselves_only(schema: str, table: str, other: str) -> None:
    text = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))
    pattern = TablePattern.parse(text)
    assert pattern.exact
    assert pattern.matches(schema, table)
    assert pattern.matches(schema, other) is (other == table)


@given(part=st.text("ab_*?", min_size=1, max_size=8), table=st.text("ab_", max_size=8))
def test_wildcards_are_those_of_the_shell(part: str, table: str) -> None:
    pattern = TablePattern.parse(f"public.{part}")
    assert pattern.matches("public", table) is fnmatchcase(table, part)
    assert pattern.exact is not any(wild in part for wild in "*?")
