"""Promises of what tasks keep for each other: the same or made anew, never too much, never in the
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.spark.recent import Recent


def _rows(text: str) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"changes": [text.encode() * 100]}) for _ in range(2)]


def _not_again() -> Iterable[pa.RecordBatch]:
    raise AssertionError("made again")


def _made(text: str) -> Callable[[], Iterable[pa.RecordBatch]]:
    return lambda: iter(_rows(text))


def test_what_another_process_has_made_of_the_same_is_not_made_again(tmp_path: Path) -> None:
    assert Recent(tmp_path).get(("log", 1), _made("a")) == _rows("a")
    assert Recent(tmp_path).get(("log", 1), _not_again) == _rows("a")
    assert Recent(tmp_path).get(("log", 2), _made("b")) == _rows("b")


def test_the_oldest_is_forgotten_when_there_is_too_much(tmp_path: Path) -> None:
    recent = Recent(tmp_path, bytes_max=5000)
    for number in range(20):
        recent.get(number, _made("a"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5000
    assert recent.get(19, _not_again) == _rows("a")
    with pytest.raises(AssertionError, match="made again"):
        recent.get(0, _not_again)


def test_what_is_being_read_may_be_forgotten(tmp_path: Path) -> None:
    recent = Recent(tmp_path)
    recent.get(1, _made("a"))
    found = recent.get(1, _not_again)
    for path in tmp_path.iterdir():
        path.unlink()
    assert found == _rows("a")


def test_rows_that_cannot_be_kept_are_delivered_all_the_same(tmp_path: Path) -> None:
    assert Recent(tmp_path / "gone").get(1, _made("a")) == _rows("a")
    assert Recent(tmp_path, bytes_max=10).get(1, _made("a")) == _rows("a")
    assert not list(tmp_path.iterdir())
