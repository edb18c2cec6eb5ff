"""Durations and sizes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.quantity import parse_duration, parse_size, show_size


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("1.5 m", timedelta(seconds=90)),
        ("36h", timedelta(hours=36)),
        (" 7d ", timedelta(days=7)),
    ],
)
def test_durations_are_read(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "7", "d", "-1s", "1s2", "1 fortnight", "0ms", "9" * 15 + "d"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("2kB", 2000), ("8MiB", 8 << 20), ("1.5 GiB", 3 << 29), ("1tb", 10**12)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "8", "MiB", "-1B", "0B", "8 Mega", "9" * 15 + "TiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(min_value=1, max_value=2**50))
def test_a_shown_size_reads_back_to_about_itself(size: int) -> None:
    assert parse_size(show_size(size)) == pytest.approx(size, rel=0.05)
