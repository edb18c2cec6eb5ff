"""Promises of what tasks keep for each other: the same or made anew, never too much, never in the
way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tailrace.decode import TableChanges
from tailrace.spark.options import NO_LIMIT
from tailrace.spark.packed import PackedOptions, PackedStreamReader, ReadTable
from tailrace.spark.packing import unpack
from tailrace.spark.recent import Recent
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import FileStore
from tests.spark.made_log import MadeLog, Table


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


def test_what_is_not_whole_is_made_again(tmp_path: Path) -> None:
    Recent(tmp_path).get(1, _made("a"))
    (path,) = tmp_path.iterdir()
    for damaged in (path.read_bytes()[:-10], b""):
        path.write_bytes(damaged)
        assert Recent(tmp_path).get(1, _made("b")) == _rows("b")
        assert Recent(tmp_path).get(1, _not_again) == _rows("b")


def test_rows_that_cannot_be_kept_are_delivered_all_the_same(tmp_path: Path) -> None:
    assert Recent(tmp_path / "gone").get(1, _made("a")) == _rows("a")
    assert Recent(tmp_path, bytes_max=10).get(1, _made("a")) == _rows("a")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def as_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As if every read were a task of Spark; where they keep what they have made."""
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr("tailrace.spark.recent.TaskContext", SimpleNamespace(get=object))
    place = SimpleNamespace(getRootDirectory=lambda: str(kept))
    monkeypatch.setattr("tailrace.spark.recent.SparkFiles", place)
    return kept


def _read(log: MadeLog, table: Table, selection: Selection = EVERYTHING) -> list[TableChanges]:
    read = ReadTable(table.relation.oid, table.relation.qualified, log.begin)
    options = PackedOptions(
        log.store.url, (read,), log.begin, None, NO_LIMIT, NO_LIMIT, selection=selection
    )
    reader = PackedStreamReader(options)
    parts = reader.partitions(log.begin.to_dict(), log.end.to_dict())
    rows = [row for part in parts for row in reader.read(part)]
    return list(unpack(pa.Table.from_batches(rows)).tables)


def test_streams_share_what_they_select_alike_and_nothing_else(
    as_task: Path, tmp_path: Path
) -> None:
    log, table = MadeLog(FileStore(tmp_path / "log")), Table()
    log.insert(table, 0, 3)
    for _ in range(2):
        (every,) = _read(log, table)
        (narrow,) = _read(log, table, Selection.of(columns=("id",), where=None))
        (some,) = _read(log, table, Selection.of(columns=None, where="id > 0"))
        assert len(list(as_task.iterdir())) == 3
        assert every.relation == table.relation and every.rows.num_rows == 3
        assert narrow.relation.column_names == ("id",) and narrow.rows.num_rows == 3
        assert some.relation == table.relation and some.rows.num_rows == 2


@pytest.mark.usefixtures("as_task")
def test_log_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    found = []
    for first in (0, 3):
        log, table = MadeLog(FileStore(tmp_path / "log"), writer=f"writer {first}"), Table()
        log.insert(table, first, 3)
        found.append(_read(log, table)[0].rows)
        shutil.rmtree(tmp_path / "log")
    assert found[0] != found[1]
