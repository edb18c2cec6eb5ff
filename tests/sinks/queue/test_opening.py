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
KAFKA: Final = {"type": "kafka", "bootstrap_servers": "k1:9092,k2:9092", "topic": "orders"}
KINESIS: Final = {"type": "kinesis", "stream": "orders", "region": "eu-west-1"}
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
        (
            {**HOOK, "dead_letter_queue": {**KINESIS, "window_count": 1}},
            "has no option window_count",
        ),
        ({**HOOK, "dead_letter_queue": {"type": "kinesis"}}, "needs stream"),
    ],
)
def test_wrong_option_is_named(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_sink(options, store=MemoryStore(), stream=STREAM)


@pytest.mark.parametrize(
    ("sink", "dead", "own"),
    [
        (HOOK, {**HOOK, "secret": "s"}, "url"),
        (HOOK, {**HOOK, "url": "http://H:80"}, "url"),
        (KAFKA, KAFKA, "topic"),
        (KAFKA, {**KAFKA, "bootstrap_servers": "k3:9092, K2:9092"}, "topic"),
        (KINESIS, KINESIS, "stream"),
        (KINESIS, {"type": "kinesis", "stream": "orders"}, "stream"),
    ],
)
def test_dead_letter_queue_that_is_the_sinks_own_is_refused(
    sink: dict[str, object],
    dead: dict[str, object],
    own: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reads the queue would take copies of dead letters for changes."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with pytest.raises(ConfigError, match=f"is the sink's own {own}") as refused:
        open_sink({**sink, "dead_letter_queue": dead}, store=MemoryStore(), stream=STREAM)
    assert f"name another {own}" in refused.value.hint
    assert "http" not in str(refused.value)


@pytest.mark.parametrize(
    ("sink", "dead"),
    [
        (HOOK, {**HOOK, "url": "http://h/dead"}),
        (HOOK, {**HOOK, "url": "https://h/"}),
        (KINESIS, {**KINESIS, "stream": "orders-dead"}),
        (KINESIS, {**KINESIS, "region": "eu-north-1"}),
        (HOOK, KINESIS),
    ],
)
def test_dead_letter_queue_that_is_another_is_taken(
    sink: dict[str, object], dead: dict[str, object]
) -> None:
    open_sink({**sink, "dead_letter_queue": dead}, store=MemoryStore(), stream=STREAM).close()


def test_queue_needs_a_log_for_its_dead_letters() -> None:
    with pytest.raises(ConfigError, match="needs a log"):
        open_sink({"type": "webhook", "url": "http://h/"})
