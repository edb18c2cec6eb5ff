"""Queue sinks from the words of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tailrace.cli.config import parse
from tailrace.errors import ConfigError
from tailrace.sinks import open_sink
from tailrace.sinks.queue import QueueSink
from tailrace.sinks.sink import REPLAY_SUFFIX
from tailrace.storage import MemoryStore
from tests.capture.running import wait_until
from tests.sinks.queue.servers import STREAM, WebhookQueue
from tests.sinks.source import Source, batch_of

HOOK: Final = {"type": "webhook", "url": "http://h/"}
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


@pytest.mark.parametrize("stream", [STREAM, f"{STREAM}{REPLAY_SUFFIX}"])
def test_dead_letter_queue_of_a_configuration_gets_copies_but_none_of_a_replay(
    receiver: WebhookQueue, stream: str
) -> None:
    text = "streams: {orders: {sink: {type: webhook, url: $URL, dead_letter_queue: $DEAD}}}"
    dead = '{type: webhook, url: "${HOOK}", secret: s3cret, batch_count: 1}'
    text = text.replace("$DEAD", dead).replace("$URL", "'http://127.0.0.1:9/'")
    config = parse(text, root=Path("/"), environ={"HOOK": receiver.url})
    assert "s3cret" not in repr(config)
    options = {**config.streams[STREAM].sink.model_dump(), "batch_bytes": 10}
    sink, source = open_sink(options, store=MemoryStore(), stream=stream), Source()
    source.insert(id=1)
    sink.write(batch_of(1, source.take(), stream=stream))
    if stream == STREAM:
        wait_until(receiver.received)
        assert receiver.received()[0]["kind"] == "poison"
    sink.close()
    assert len(receiver.received()) == (stream == STREAM)


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
        ({**HOOK, "dead_letter_queue": {"type": "delta"}}, "no queue"),
        ({**HOOK, "dead_letter_queue": {**HOOK, "window_count": 1}}, "has no option window_count"),
        ({**HOOK, "dead_letter_queue": {"type": "kinesis"}}, "needs stream"),
    ],
)
def test_wrong_option_is_named(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_sink(options, store=MemoryStore(), stream=STREAM)


def test_queue_needs_a_log_for_its_dead_letters() -> None:
    with pytest.raises(ConfigError, match="needs a log"):
        open_sink({"type": "webhook", "url": "http://h/"})
