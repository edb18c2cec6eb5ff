"""Every queue, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

from tests.sinks.conftest import SPARK
from tests.sinks.queue.broker import Broker
from tests.sinks.queue.kafka_queue import KafkaQueue
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


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The worker's broker."""
    running = Broker(Path(tmp_path_factory.mktemp("kafka"), "broker"))
    yield running
    running.close()


@pytest.fixture
def kafka(broker: Broker, delta_session: SparkSession) -> KafkaQueue:
    """A topic of its own."""
    return KafkaQueue(broker, delta_session)


@pytest.fixture(params=["receiver", "kinesis", pytest.param("kafka", marks=SPARK)])
def queue(request: pytest.FixtureRequest) -> Queue:
    """What every queue promises is tested on each."""
    found: Queue = request.getfixturevalue(request.param)
    return found
