"""Every name has a place of its own in the lake, and none leaves it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.delta import table_uri
from tailrace.sinks.place import escape, unescape
from tests.sinks.source import relation

NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=63)


@given(NAMES)
def test_names_survive_the_way_there_and_back(name: str) -> None:
    assert unescape(escape(name)) == name


@given(NAMES, NAMES)
def test_different_names_have_different_places(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(NAMES, NAMES)
def test_f107_no_name_leaves_the_lake(schema: str, name: str) -> None:
    uri = table_uri("/lake", relation(name, schema=schema))
    assert re.fullmatch(r"/lake/[A-Za-z0-9_~-]+/[A-Za-z0-9_~-]+", uri)
    assert Path(uri).resolve().parent.parent == Path("/lake")


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("orders", "orders"),
        ("Order_Items-2", "Order_Items-2"),
        ("..", "~2E~2E"),
        ("a/b c", "a~2Fb~20c"),
        ("~", "~7E"),
        ("_delta_log", "~5Fdelta_log"),
        ("größe", "gr~C3~B6~C3~9Fe"),
    ],
)
def test_places_of_names_are_fixed(name: str, component: str) -> None:
    assert escape(name) == component


@pytest.mark.parametrize("component", ["", "a.b", "a%20b", "~2", "~2e", "~FF"])
def test_what_is_no_place_of_a_name_is_refused(component: str) -> None:
    with pytest.raises(ValueError):
        unescape(component)


def test_url_of_a_bucket_keeps_its_form() -> None:
    assert table_uri("s3://bucket/lake/", relation()) == "s3://bucket/lake/public/orders"
