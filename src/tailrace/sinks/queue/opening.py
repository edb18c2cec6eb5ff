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
from tailrace.sinks.sink import stream_of
from tailrace.storage import Store

_Open = Callable[[Mapping[str, object], SparkSession | None, str], Sender]


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
    given = _given(options)
    open_sender, _ = SENDERS[kind]
    settings = queue_options.QueueOptions.parse(given)
    own = stream_of(stream)
    copies = _dead_letter_sender(given.get("dead_letter_queue"), session, own)
    sender = open_sender(given, session, own)
    if stream != own:
        # What a replay cannot deliver parks nothing, and is told where the replay is asked for.
        copies = None
    return QueueSink(kind, sender, store, stream, settings, dead_letter_sender=copies)


def _dead_letter_sender(
    options: object, session: SparkSession | None, stream: str
) -> Sender | None:
    """Where copies of dead letters go, if anywhere; raises ConfigError."""
    if options is None:
        return None
    given = _given(options) if isinstance(options, Mapping) else {}
    kind = str(given.pop("type", ""))
    if kind not in SENDERS:
        raise ConfigError(
            "dead_letter_queue of a sink is no queue", hint=f"type: one of {', '.join(SENDERS)}"
        )
    open_sender, known = SENDERS[kind]
    if unknown := [name for name in given if name not in known]:
        raise ConfigError(
            f"dead_letter_queue has no option {unknown[0]}", hint=f"options: {', '.join(known)}"
        )
    return open_sender(given, session, stream)


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _webhook(options: Mapping[str, object], _: SparkSession | None, __: str) -> Sender:
    return webhook.WebhookSender(webhook.WebhookOptions.parse(options))


def _kinesis(options: Mapping[str, object], _: SparkSession | None, stream: str) -> Sender:
    # Takes a while to import, and most streams do without.
    from tailrace.sinks.queue.kinesis import KinesisOptions, KinesisSender

    return KinesisSender(KinesisOptions.parse(options), stream)


def _kafka(options: Mapping[str, object], session: SparkSession | None, stream: str) -> Sender:
    return kafka.KafkaSender(kafka.KafkaOptions.parse(options), session, stream)


SENDERS: Final[Mapping[str, tuple[_Open, tuple[str, ...]]]] = {
    "webhook": (_webhook, webhook.OPTIONS),
    "kafka": (_kafka, kafka.OPTIONS),
    "kinesis": (_kinesis, ("stream", "region", "endpoint_url", "timeout")),
}
"""How each is opened, and the options that it has beside those of every queue."""
