"""A lake in a bucket: found through the environment, and guarded by conditional puts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.errors import SinkError
from tests.s3 import make_bucket, s3_server, set_policy
from tests.sinks.harness import DeltaHarness
from tests.sinks.source import Source, batch_of
from tests.sinks.test_conformance import filled
from tests.sinks.test_conformance import test_f082_two_writers_of_one_batch_apply_it_once as race


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeltaHarness]:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with s3_server("lake"):
        # The servers of one process share their buckets.
        made = DeltaHarness(f"s3://lake/{tmp_path.name}", None)
        yield made
        made.close()


def test_bucket_holds_a_lake(bucket: DeltaHarness) -> None:
    source = filled(bucket)
    source.update(1, n=10, unchanged=["doc"])
    bucket.sink.write(batch_of(2, source.take(), known=["public.orders"]))
    assert bucket.rows(source.relation) == source.expected()


def test_f082_two_writers_of_one_batch_apply_it_once_in_a_bucket(bucket: DeltaHarness) -> None:
    race(bucket)


def test_f098_bucket_that_is_missing_or_closed_is_named_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    source, bucket = Source(), tmp_path.name.replace("_", "-")[-60:].strip("-")
    source.insert(id=1, n=1)
    first = batch_of(1, source.take())
    source.update(1, n=2)
    second = batch_of(2, source.take(), known=["public.orders"])
    with s3_server() as endpoint, closing(DeltaHarness(f"s3://{bucket}/lake", None)) as lake:
        with pytest.raises(SinkError, match="NoSuchBucket") as caught:
            lake.sink.write(first)
        assert caught.value.retry and "make the bucket" in caught.value.hint
        make_bucket(endpoint, bucket)
        lake.sink.write(first)
        set_policy(endpoint, bucket, "Deny")
        with pytest.raises(SinkError, match="403 Forbidden") as caught:
            lake.sink.write(second)
        assert caught.value.retry and "AWS_ACCESS_KEY_ID" in caught.value.hint
        set_policy(endpoint, bucket, "Allow")
        lake.sink.write(second)
        assert lake.rows(source.relation) == source.expected()


def test_f098_file_in_the_way_of_a_lake_is_named_and_waited_for(tmp_path: Path) -> None:
    source = Source()
    source.insert(id=1, n=1)
    batch = batch_of(1, source.take())
    (tmp_path / "lake").write_text("in the way")
    with closing(DeltaHarness(str(tmp_path / "lake"), None)) as lake:
        with pytest.raises(SinkError, match="not a directory") as caught:
            lake.sink.write(batch)
        assert caught.value.retry and "goes on by itself" in caught.value.hint
        (tmp_path / "lake").unlink()
        lake.sink.write(batch)
        assert lake.rows(source.relation) == source.expected()
