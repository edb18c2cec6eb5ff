"""Every queue, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from tests.sinks.queue.servers import Gate, KinesisQueue, Queue, WebhookQueue, webhook


@pytest.fixture(scope="module")
def kinesis_server() -> Iterator[tuple[str, Gate]]:
    """moto's server behind a gate; the environment has keys for it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = gate = Gate(server._server.app)
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("AWS_ACCESS_KEY_ID", "test-key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield f"http://{host}:{port}", gate
    server.stop()


@pytest.fixture
def kinesis(kinesis_server: tuple[str, Gate]) -> Iterator[KinesisQueue]:
    """A stream of its own."""
    queue = KinesisQueue(*kinesis_server)
    yield queue
    queue.close()


@pytest.fixture
def receiver() -> Iterator[WebhookQueue]:
    """An HTTP server."""
    with webhook() as queue:
        yield queue


@pytest.fixture(params=["webhook", "kinesis"])
def queue(request: pytest.FixtureRequest) -> Queue:
    """What every queue promises is tested on each."""
    name = "receiver" if request.param == "webhook" else "kinesis"
    found: Queue = request.getfixturevalue(name)
    return found
