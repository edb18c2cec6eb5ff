"""Change files: where they lie, what the index says of them, and what a reader sees."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pyarrow.parquet as pq
import pytest

from tailrace.errors import SinkError
from tailrace.sinks.parquet import ParquetOptions, ParquetSink, Partition
from tailrace.sinks.parquet.check import check_place
from tests.s3 import make_bucket, s3_server, set_policy
from tests.sinks.change_harness import ParquetHarness
from tests.sinks.source import Source, batch_of
from tests.sinks.test_changes import test_f069_odd_names_of_tables_and_columns as odd_names
from tests.sinks.test_changes import test_f082_two_writers_of_one_batch_apply_it_once as race

DAY = 86_400
"""Of the test source a second is one LSN."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ParquetHarness]:
    with closing(ParquetHarness(str(tmp_path))) as harness:
        yield harness


def two_days() -> Source:
    source = Source()
    source.insert(id=1)
    source.lsn += DAY
    source.insert(id=2)
    return source


def test_batch_over_midnight_is_whole_once_the_index_names_its_files(
    files: ParquetHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = two_days()
    files.sink.prepare(source.relation)
    seen = []
    monkeypatch.setattr(
        "tailrace.sinks.parquet.sink.failpoint",
        lambda name: seen.append((name, len(files.files(source.relation)))),
    )
    files.sink.write(batch_of(1, source.take()))
    assert [found for _, found in seen] == [0, 0, 0, 2]
    folders = [Path(name).parent.name for name in files.files(source.relation)]
    assert folders == ["_commit_date=1970-01-01", "_commit_date=1970-01-02"]
    entry = json.loads((tmp_path / "public/orders/_index/000000000001.json").read_text())
    assert (entry["kind"], entry["stream"], entry["sequence"]) == ("batch", "lake", 1)
    assert [file["rows"] for file in entry["files"]] == [1, 1]


def test_without_partitions_a_batch_is_one_file(tmp_path: Path) -> None:
    source = two_days()
    with closing(ParquetSink(ParquetOptions(str(tmp_path), Partition.NONE))) as sink:
        sink.write(batch_of(1, source.take()))
    (file,) = (tmp_path / "public/orders/data").iterdir()
    assert pq.read_table(file).num_rows == 2


def test_f098_bucket_that_is_made_later_takes_the_batch_when_it_is_there(tmp_path: Path) -> None:
    source = two_days()
    batch = batch_of(1, source.take())
    with s3_server() as endpoint:
        # The servers of one process share their buckets.
        bucket = tmp_path.name.replace("_", "-")[-60:].strip("-")
        with closing(ParquetHarness(f"s3://{bucket}/changes")) as files:
            with pytest.raises(SinkError, match="NoSuchBucket") as caught:
                files.sink.write(batch)
            assert caught.value.retry and caught.value.hint == (
                "make the bucket, or correct its name; delivery then goes on by itself"
            )
            make_bucket(endpoint, bucket)
            files.sink.write(batch)
            assert len(files.files(source.relation)) == 2
            set_policy(endpoint, bucket, "Deny")
            source.insert(id=3)
            more = batch_of(2, source.take(), known=["public.orders"])
            with pytest.raises(SinkError, match=r"403 Forbidden|AccessDenied") as caught:
                files.sink.write(more)
            assert caught.value.retry and "AWS_ACCESS_KEY_ID" in caught.value.hint
            set_policy(endpoint, bucket, "Allow")
            files.sink.write(more)
            assert len(files.files(source.relation)) == 3


def test_f098_file_in_the_way_is_waited_for(tmp_path: Path) -> None:
    source = two_days()
    batch = batch_of(1, source.take())
    (tmp_path / "changes").write_text("in the way")
    with closing(ParquetHarness(str(tmp_path / "changes"))) as files:
        with pytest.raises(SinkError) as caught:
            files.sink.write(batch)
        assert caught.value.retry and "goes on by itself" in caught.value.hint
        (tmp_path / "changes").unlink()
        files.sink.write(batch)
        assert len(files.files(source.relation)) == 2


def test_damaged_index_is_refused(files: ParquetHarness, tmp_path: Path) -> None:
    source = two_days()
    files.sink.prepare(source.relation)
    (tmp_path / "public/orders/_index/000000000000.json").write_text("{}")
    with closing(files.open()) as sink, pytest.raises(SinkError, match="no entry") as caught:
        sink.write(batch_of(1, source.take()))
    assert caught.value.hint and not caught.value.retry


def test_writer_that_was_overtaken_between_its_look_and_its_entry_changes_nothing(
    files: ParquetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    source.insert(id=1)
    late = batch_of(1, source.take())
    source.insert(id=2)
    later = batch_of(2, source.take())
    other = files.open()

    def overtake(name: str) -> None:
        if name == "parquet.before_commit":
            monkeypatch.undo()
            other.write(later)

    files.sink.prepare(source.relation)
    monkeypatch.setattr("tailrace.sinks.parquet.sink.failpoint", overtake)
    files.sink.write(late)
    assert [row["id"] for row in files.changes(source.relation)] == [2]


def test_check_tells_of_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    assert list(check_place(str(tmp_path / "not/there/yet"), "stream a")) == []
    (tmp_path / "file").touch()
    (found,) = check_place(str(tmp_path / "file/below"), "stream a")
    assert found.severity == "blocker" and found.fix


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ParquetHarness]:
    with (
        s3_server("changes"),
        # The servers of one process share their buckets.
        closing(ParquetHarness(f"s3://changes/{tmp_path.name}")) as harness,
    ):
        yield harness


def test_bucket_holds_change_files_and_gets_each_once(bucket: ParquetHarness) -> None:
    race(bucket)
    odd_names(bucket)


def test_check_tells_of_a_bucket_that_is_not_there(bucket: ParquetHarness) -> None:
    assert list(check_place(bucket.path, "stream a")) == []
    (found,) = check_place("s3://nowhere/below", "stream a")
    assert found.severity == "blocker" and "make the bucket" in found.fix


def test_f098_what_only_a_restart_cures_is_not_said_to_go_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EOPNOTSUPP, "no links")

    batch = batch_of(1, two_days().take())
    monkeypatch.setattr("os.link", refuse)
    sink = ParquetSink(ParquetOptions(str(tmp_path)))
    with closing(sink), pytest.raises(SinkError, match="hard links") as caught:
        sink.write(batch)
    assert (
        "file system with hard links" in caught.value.hint and "by itself" not in caught.value.hint
    )
