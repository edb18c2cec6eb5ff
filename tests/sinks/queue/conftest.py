"""Every queue, on a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from werkzeug.serving import make_server

from tests.sinks.conftest import SPARK
from tests.sinks.queue.broker import Broker
from tests.sinks.queue.kafka_queue import KafkaQueue
from tests.sinks.queue.kinesalite_server import Kinesalite
from tests.sinks.queue.moto_server import any_keys, moto_server
from tests.sinks.queue.servers import Gate, KinesisQueue, Queue, WebhookQueue, webhook


@pytest.fixture(scope="session")
def aws_keys() -> Iterator[None]:
    """For servers that take any."""
    with any_keys():
        yield


@pytest.fixture(scope="module")
def moto_gate() -> Iterator[tuple[str, Gate]]:
    """moto's server behind a gate."""
    with moto_server() as (endpoint, gate):
        yield endpoint, gate


@pytest.fixture(scope="module")
def kinesalite_gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Gate]]:
    """kinesalite behind a gate."""
    with closing(Kinesalite(tmp_path_factory.mktemp("kinesalite") / "log")) as application:
        gate = Gate(application)
        server = make_server("127.0.0.1", 0, gate, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.port}", gate
        server.shutdown()
        server.server_close()


@pytest.fixture
def moto(aws_keys: None, moto_gate: tuple[str, Gate]) -> Iterator[KinesisQueue]:
    """A stream of its own."""
    with closing(KinesisQueue(*moto_gate)) as queue:
        yield queue


@pytest.fixture
def kinesalite(aws_keys: None, kinesalite_gate: tuple[str, Gate]) -> Iterator[KinesisQueue]:
    """A stream of its own."""
    with closing(KinesisQueue(*kinesalite_gate)) as queue:
        yield queue


@pytest.fixture(params=["moto", "kinesalite"])
def kinesis(request: pytest.FixtureRequest) -> KinesisQueue:
    """On each server."""
    found: KinesisQueue = request.getfixturevalue(request.param)
    return found


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


@pytest.fixture(params=["receiver", "moto"])
def patient(request: pytest.FixtureRequest) -> WebhookQueue | KinesisQueue:
    """Each queue whose client waits for an answer itself."""
    found: WebhookQueue | KinesisQueue = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["receiver", "moto", "kinesalite", pytest.param("kafka", marks=SPARK)])
def queue(request: pytest.FixtureRequest) -> Queue:
    """What every queue promises is tested on each."""
    found: Queue = request.getfixturevalue(request.param)
    return found
