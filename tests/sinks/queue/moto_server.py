"""A server of Kinesis behind a gate, and keys for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer

from tests.sinks.queue.servers import Gate


@contextmanager
def moto_server() -> Iterator[tuple[str, Gate]]:
    """The address of a server of Kinesis, and the gate before it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = gate = Gate(server._server.app)
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}", gate
    finally:
        server.stop()


@contextmanager
def any_keys() -> Iterator[None]:
    """Keys in the environment, for servers that take any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("AWS_ACCESS_KEY_ID", "test-key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield
