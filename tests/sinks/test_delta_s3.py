"""A lake in a bucket: found through the environment, and guarded by conditional puts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

from tests.sinks.harness import DeltaHarness
from tests.sinks.source import batch_of
from tests.sinks.test_conformance import filled
from tests.sinks.test_conformance import test_f082_two_writers_of_one_batch_apply_it_once as race


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DeltaHarness]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    urlopen(Request(f"{endpoint}/lake", method="PUT")).close()
    # The servers of one process share their buckets.
    made = DeltaHarness(f"s3://lake/{tmp_path.name}", None)
    yield made
    made.close()
    server.stop()


def test_bucket_holds_a_lake(bucket: DeltaHarness) -> None:
    source = filled(bucket)
    source.update(1, n=10, unchanged=["doc"])
    bucket.sink.write(batch_of(2, source.take(), known=["public.orders"]))
    assert bucket.rows(source.relation) == source.expected()


def test_f082_two_writers_of_one_batch_apply_it_once_in_a_bucket(bucket: DeltaHarness) -> None:
    race(bucket)
