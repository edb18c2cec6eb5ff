"""Queue sinks from the words of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli.config import parse
from tailrace.errors import ConfigError
from tailrace.sinks import open_sink
from tailrace.sinks.queue import QueueSink
from tailrace.storage import MemoryStore
from tests.sinks.queue.servers import STREAM, WebhookQueue
from tests.sinks.source import Source, batch_of

WEBHOOK = """
streams:
  orders:
    sink:
      type: webhook
      url: ${HOOK}
      secret: ${SECRET}
      headers: {X-Tenant: t1}
      envelope: plain
      retry_max_elapsed: 5s
      window_bytes: 1MiB
      dead_letter_bytes: 10MiB
"""


def test_webhook_of_a_configuration_delivers(receiver: WebhookQueue) -> None:
    environ = {"HOOK": receiver.url, "SECRET": "s3cret"}
    config = parse(WEBHOOK, root=Path("/"), environ=environ)
    assert "s3cret" not in repr(config) and "hidden" not in repr(config)
    options = config.streams[STREAM].sink.model_dump()
    sink = open_sink(options, store=MemoryStore(), stream=STREAM)
    source = Source()
    source.insert(id=1)
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    (message,) = receiver.received()
    assert (message["op"], message["stream"]) == ("insert", STREAM)
    assert receiver.headers[0]["X-Tenant"] == "t1"


def test_kinesis_of_a_configuration_opens_without_asking_the_server() -> None:
    text = "streams: {orders: {sink: {type: kinesis, stream: s, region: eu-west-1}}}"
    config = parse(text, root=Path("/"), environ={})
    options = config.streams[STREAM].sink.model_dump()
    sink = open_sink(options, store=MemoryStore(), stream=STREAM)
    assert isinstance(sink, QueueSink)
    sink.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"type": "webhook"}, "needs url"),
        ({"type": "webhook", "url": "http://h/", "envelope": "xml"}, "envelope"),
        ({"type": "webhook", "url": "http://h/", "on_exhausted": "drop"}, "on_exhausted"),
        ({"type": "webhook", "url": "http://h/", "window_count": 0}, "window_count"),
        ({"type": "kinesis"}, "needs stream"),
        ({"type": "kinesis", "stream": "a stream!"}, "no name"),
        ({"type": "kinesis", "stream": "s", "retry_max_elapsed": -1}, "retry_max_elapsed"),
        ({"type": "kinesis", "stream": "s", "url": "x"}, "no option url"),
    ],
)
def test_wrong_option_is_named(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_sink(options, store=MemoryStore(), stream=STREAM)


def test_queue_needs_a_log_for_its_dead_letters() -> None:
    with pytest.raises(ConfigError, match="needs a log"):
        open_sink({"type": "webhook", "url": "http://h/"})
