"""Tables are tidied behind the batches' backs, and never in their way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailrace.errors import ConfigError
from tailrace.sinks.delta import DeltaOptions, EmbeddedEngine, Mode, table_uri
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.files import Files
from tailrace.sinks.delta.merge import Merge
from tailrace.sinks.delta.target import Target
from tailrace.sinks.delta.upkeep import Upkeep
from tests.sinks.conftest import HISTORY, SOFT_DELETE
from tests.sinks.harness import QUIET, DeltaHarness
from tests.sinks.source import Source, batch_of, relation

DAY_S = 86_400


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.HISTORY])
def test_small_files_are_merged_and_rows_stay(tmp_path: Path, mode: Mode) -> None:
    lake = DeltaHarness(str(tmp_path), None, DeltaOptions(mode=mode, compact_after=10))
    source = Source()
    for sequence in range(1, 25):
        source.insert(id=sequence, n=sequence)
        lake.sink.write(batch_of(sequence, source.take()))
    lake.close()
    table = lake.table(source.relation)
    assert any(entry["operation"].startswith("OPTIMIZE") for entry in table.history())
    assert len(table.file_uris()) < 20
    assert lake.rows(source.relation) == source.expected()
    assert table.transaction_version("tailrace:lake") == 24


@pytest.mark.spark
@pytest.mark.server
def test_engines_compact_and_vacuum_the_same_table(lake: DeltaHarness) -> None:
    source = Source()
    for sequence in range(1, 5):
        source.insert(id=sequence, doc="x")
        lake.sink.write(batch_of(sequence, source.take()))
    for cluster_by in ([], ["id"]):
        target = opened(lake, source)
        lake.engine().compact(target, cluster_by)
        lake.engine().vacuum(target, timedelta(days=7))
    assert len(lake.table(source.relation).file_uris()) == 1
    assert lake.rows(source.relation) == source.expected()


def opened(lake: DeltaHarness, source: Source) -> Target:
    target = Target.open(table_uri(lake.path, source.relation))
    assert target is not None
    return target


def test_loaded_table_is_put_in_order(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None, DeltaOptions(compact_after=1000))
    source = of_some_files(lake)
    uri = table_uri(lake.path, source.relation)
    for low in range(10):
        rows = lake.table(source.relation).to_pyarrow_table().slice(0, 2)
        ids = pa.array([low, 1000 + low])
        write_deltalake(uri, rows.set_column(0, rows.schema.field(0), ids), mode="append")
    upkeep = Upkeep(EmbeddedEngine(), lake.options)
    upkeep.note(opened(lake, source), ["id"], is_loaded=True)
    upkeep.wait(uri)
    assert not Files.of(opened(lake, source), "id").is_out_of_order
    upkeep.close()
    lake.close()


class Between(EmbeddedEngine):
    """Lets something happen when the first MERGE, or the first compaction, has begun."""

    def __init__(self, event: Callable[[], None]) -> None:
        self._events = [event]

    def merge(self, target: Target, merge: Merge, commit: Commit) -> None:
        self._happen()
        super().merge(target, merge, commit)

    def compact(self, target: Target, cluster_by: Sequence[str]) -> None:
        self._happen()
        super().compact(target, cluster_by)

    def _happen(self) -> None:
        if self._events:
            self._events.pop()()


def of_some_files(lake: DeltaHarness) -> Source:
    source = Source()
    for sequence in range(1, 4):
        source.insert(id=sequence, doc="large", n=sequence)
        lake.sink.write(batch_of(sequence, source.take()))
    return source


@pytest.mark.parametrize("options", [QUIET, HISTORY, SOFT_DELETE])
def test_batch_that_a_compaction_overtakes_is_applied_all_the_same(
    tmp_path: Path, options: DeltaOptions
) -> None:
    lake = DeltaHarness(str(tmp_path), None, options)
    source = of_some_files(lake)

    def compact() -> None:
        EmbeddedEngine().compact(opened(lake, source), ["id"])

    sink = lake.open(Between(compact))
    source.update(1, n=10, unchanged=["doc"])
    source.update(2, id=9, unchanged=["doc"])
    source.delete(3)
    sink.write(batch_of(5, source.take()))
    assert lake.rows(source.relation) == source.expected()
    assert any(e["operation"] == "OPTIMIZE" for e in lake.table(source.relation).history())
    lake.close()


def test_compaction_that_a_batch_overtakes_gives_way(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = Source()
    for sequence in range(1, 12):
        source.insert(id=sequence, n=sequence)
        lake.sink.write(batch_of(sequence, source.take()))
    source.update(1, n=10)
    source.delete(2)
    meanwhile = batch_of(12, source.take())
    upkeep = Upkeep(Between(lambda: lake.sink.write(meanwhile)), replace(QUIET, compact_after=1))
    upkeep.note(opened(lake, source), ["id"])
    source.insert(id=20)
    lake.sink.write(batch_of(11, source.take(), stream="other"))
    upkeep.note(opened(lake, source), ["id"])
    upkeep.wait(table_uri(lake.path, source.relation))
    assert lake.sink.committed("lake", [source.relation]) == {"public.orders": 12}
    assert lake.rows(source.relation) == source.expected()
    operations = {entry["operation"] for entry in lake.table(source.relation).history()}
    assert "OPTIMIZE" not in operations
    upkeep.close()
    lake.close()


def test_only_files_that_nobody_needs_any_more_are_deleted(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = of_some_files(lake)
    source.truncate()
    source.insert(id=7)
    lake.sink.write(batch_of(5, source.take()))
    directory = Path(table_uri(lake.path, source.relation))
    kept = set(directory.glob("*.parquet"))
    old, young = directory / "old-leftover.parquet", directory / "young-leftover.parquet"
    for leftover, age_s in ((old, 8 * DAY_S), (young, 0)):
        leftover.write_bytes(b"of a writer that was killed")
        os.utime(leftover, (time.time() - age_s,) * 2)
    EmbeddedEngine().vacuum(opened(lake, source), timedelta(days=7))
    assert set(directory.glob("*.parquet")) == {*kept, young}
    version = lake.table(source.relation).version()
    EmbeddedEngine().vacuum(opened(lake, source), timedelta(days=7))
    assert lake.table(source.relation).version() == version, "nothing to delete, and no commit"
    lake.close()


def files_of(tmp_path: Path, *ranges: tuple[int, int]) -> Files:
    uri = str(tmp_path / "t")
    for low, high in ranges:
        write_deltalake(uri, pa.table({"id": [low, high]}), mode="append")
    target = Target.open(uri)
    assert target is not None
    return Files.of(target, "id")


def test_files_side_by_side_are_in_order(tmp_path: Path) -> None:
    files = files_of(tmp_path, *[(at, at + 9) for at in range(0, 80, 10)])
    assert (files.count, files.small_count, files.depth) == (8, 8, 1.0)
    assert not files.are_untidy


def test_files_that_all_span_the_keys_are_out_of_order(tmp_path: Path) -> None:
    files = files_of(tmp_path, *[(at, 1000 + at) for at in range(8)])
    assert files.depth == 4.5 and files.is_out_of_order and files.are_untidy


def test_many_small_files_are_untidy(tmp_path: Path) -> None:
    files = files_of(tmp_path, *[(at, at + 9) for at in range(0, 100, 10)])
    assert files.are_untidy and not files.is_out_of_order


def test_no_column_and_no_file_are_in_order(tmp_path: Path) -> None:
    target = Target.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    for column in (None, "id", "other"):
        assert not Files.of(target, column).are_untidy


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vacuum_after": timedelta(hours=1)}, "at least 1d"),
        ({"compact_after": -1}, "at least 0"),
        ({"mode": Mode.APPEND, "soft_delete": True}, "soft_delete"),
    ],
)
def test_options_that_would_do_harm_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(QUIET, **wrong)


def test_rows_are_ordered_by_the_key_unless_told_otherwise() -> None:
    shape = relation(key=("part", "id"))
    assert QUIET.clusters(shape) == ["part", "id"]
    assert replace(QUIET, mode=Mode.APPEND).clusters(shape) == []
    chosen = replace(QUIET, cluster_by={"public.orders": ("n",)})
    assert chosen.clusters(shape) == ["n"]
    parted = replace(QUIET, partition_by={"public.orders": ("part",)})
    assert parted.clusters(shape) == ["id"]
