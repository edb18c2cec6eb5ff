"""An S3 server on loopback: moto's, which answers one request at a time.

Its conditional put looks and then puts; two at once could both succeed, as they cannot in S3.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@contextmanager
def s3_server(*buckets: str, secret: str = "test-secret") -> Iterator[str]:
    """Its URL; the environment points to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = _one_at_a_time(server._server.app)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test-key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        patch.setenv("AWS_REGION", "us-east-1")
        for bucket in buckets:
            make_bucket(endpoint, bucket)
        yield endpoint
    server.stop()


def set_policy(endpoint: str, bucket: str, effect: str) -> None:
    """`Allow` or `Deny` everything in a bucket, but for listing: moto asks no policy there."""
    rule = {"Effect": effect, "Principal": "*", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rule]}).encode()
    kind = {"Content-Type": "application/json"}
    urlopen(Request(f"{endpoint}/{bucket}?policy", policy, kind, method="PUT")).close()


def make_bucket(endpoint: str, bucket: str) -> None:
    """A bucket that was not there."""
    urlopen(Request(f"{endpoint}/{bucket}", method="PUT")).close()


def _one_at_a_time(app: WSGIApplication) -> WSGIApplication:
    lock = threading.Lock()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return answer
