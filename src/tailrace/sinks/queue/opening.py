"""Queue sinks from the options of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.queue import kafka, webhook
from tailrace.sinks.queue import options as queue_options
from tailrace.sinks.queue.sender import Sender
from tailrace.sinks.queue.sink import QueueSink
from tailrace.storage import Store

_Open = Callable[[Mapping[str, object], SparkSession | None], Sender]


def open_queue(
    kind: str,
    options: Mapping[str, object],
    *,
    store: Store | None,
    stream: str,
    session: SparkSession | None = None,
) -> QueueSink:
    """The sink of this type for one stream; raises ConfigError."""
    if store is None or not stream:
        raise ConfigError(f"a {kind} sink needs a log beside which it keeps dead letters")
    given = {name: value for name, value in options.items() if value is not None}
    open_sender, _ = SENDERS[kind]
    settings = queue_options.QueueOptions.parse(given)
    return QueueSink(kind, open_sender(given, session), store, stream, settings)


def _webhook(options: Mapping[str, object], _: SparkSession | None) -> Sender:
    return webhook.WebhookSender(webhook.WebhookOptions.parse(options))


def _kinesis(options: Mapping[str, object], _: SparkSession | None) -> Sender:
    # Takes a while to import, and most streams do without.
    from tailrace.sinks.queue.kinesis import KinesisOptions, KinesisSender

    return KinesisSender(KinesisOptions.parse(options))


def _kafka(options: Mapping[str, object], session: SparkSession | None) -> Sender:
    return kafka.KafkaSender(kafka.KafkaOptions.parse(options), session)


SENDERS: Final[Mapping[str, tuple[_Open, tuple[str, ...]]]] = {
    "webhook": (_webhook, (*webhook.OPTIONS, *queue_options.OPTIONS)),
    "kafka": (_kafka, (*kafka.OPTIONS, *queue_options.OPTIONS)),
    "kinesis": (_kinesis, ("stream", "region", "endpoint_url", "timeout", *queue_options.OPTIONS)),
}
"""How each is opened, and the options that it has."""
