"""A bucket on a real HTTP endpoint: moto's server on loopback."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.s3 import s3_server

BUCKET = "log"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server with one bucket, which the environment points to."""
    with s3_server(BUCKET) as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str) -> str:
    """A prefix that no other test uses."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
