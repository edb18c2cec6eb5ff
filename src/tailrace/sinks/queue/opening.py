"""Queue sinks from the options of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.queue import kafka, webhook
from tailrace.sinks.queue import options as queue_options
from tailrace.sinks.queue.sender import Sender
from tailrace.sinks.queue.sink import QueueSink
from tailrace.sinks.sink import stream_of
from tailrace.storage import Store


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
    settings = queue_options.QueueOptions.parse(given)
    require_other_queue(kind, given)
    own = stream_of(stream)
    # What a replay cannot deliver parks nothing, and is told where the replay is asked for.
    copies = _dead_letter_options(given.get("dead_letter_queue")) if stream == own else None
    other = SENDERS[copies[0]].open(copies[1], session, own) if copies else None
    sender = SENDERS[kind].open(given, session, own)
    return QueueSink(kind, sender, store, stream, settings, dead_letter_sender=other)


def require_other_queue(kind: str, options: Mapping[str, object]) -> None:
    """Copies of dead letters go anywhere but to the queue that did not take the messages: whoever
    reads it would take them for changes. Raises ConfigError.
    """
    given = _given(options)
    copies = _dead_letter_options(given.get("dead_letter_queue"))
    if copies is None or copies[0] != kind:
        return
    kinds = SENDERS[kind]
    if not kinds.places(given).isdisjoint(kinds.places(copies[1])):
        raise ConfigError(
            f"dead_letter_queue of a {kind} sink is the sink's own {kinds.place}",
            hint=f"name another {kinds.place}, or leave dead_letter_queue out: dead letters are"
            " kept beside the log anyway",
        )


def _dead_letter_options(options: object) -> tuple[str, dict[str, object]] | None:
    """The type and the options of where copies of dead letters go, if anywhere; raises
    ConfigError.
    """
    if options is None:
        return None
    given = _given(options) if isinstance(options, Mapping) else {}
    kind = str(given.pop("type", ""))
    if kind not in SENDERS:
        raise ConfigError(
            "dead_letter_queue of a sink is no queue", hint=f"type: one of {', '.join(SENDERS)}"
        )
    known = SENDERS[kind].options
    if unknown := [name for name in given if name not in known]:
        raise ConfigError(
            f"dead_letter_queue has no option {unknown[0]}", hint=f"options: {', '.join(known)}"
        )
    return kind, given


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _webhook(options: Mapping[str, object], _: SparkSession | None, __: str) -> Sender:
    return webhook.WebhookSender(webhook.WebhookOptions.parse(options))


def _kinesis(options: Mapping[str, object], _: SparkSession | None, stream: str) -> Sender:
    # Takes a while to import, and most streams do without.
    from tailrace.sinks.queue.kinesis import KinesisOptions, KinesisSender

    return KinesisSender(KinesisOptions.parse(options), stream)


def _kinesis_places(options: Mapping[str, object]) -> frozenset[str]:
    from tailrace.sinks.queue.kinesis import KinesisOptions

    return KinesisOptions.parse(options).places()


def _kafka(options: Mapping[str, object], session: SparkSession | None, stream: str) -> Sender:
    return kafka.KafkaSender(kafka.KafkaOptions.parse(options), session, stream)


@dataclass(frozen=True, slots=True)
class QueueKind:
    """How a kind of queue is opened, the options that it has beside those of every queue, and what
    its messages go to: the word for it, and which ones some options name.
    """

    open: Callable[[Mapping[str, object], SparkSession | None, str], Sender]
    options: tuple[str, ...]
    place: str
    places: Callable[[Mapping[str, object]], frozenset[str]]


SENDERS: Final[Mapping[str, QueueKind]] = {
    "webhook": QueueKind(
        *(_webhook, webhook.OPTIONS, "url"),
        lambda options: webhook.WebhookOptions.parse(options).places(),
    ),
    "kafka": QueueKind(
        *(_kafka, kafka.OPTIONS, "topic"),
        lambda options: kafka.KafkaOptions.parse(options).places(),
    ),
    "kinesis": QueueKind(
        _kinesis, ("stream", "region", "endpoint_url", "timeout"), "stream", _kinesis_places
    ),
}
