"""A lake in a bucket: found through the environment, and guarded by conditional puts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3 import s3_server
from tests.sinks.harness import DeltaHarness
from tests.sinks.source import batch_of
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
