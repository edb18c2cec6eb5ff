"""A bucket on a real HTTP endpoint: moto's server on loopback."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

BUCKET = "log"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server with one bucket, which the environment points to."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test-key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        patch.setenv("AWS_REGION", "us-east-1")
        urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
        yield endpoint
    server.stop()


@pytest.fixture
def s3_url(s3_endpoint: str) -> str:
    """A prefix that no other test uses."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
