"""A topic of a real broker whose jobs fail on demand, as jobs do: some messages have arrived."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.message import Message
from tailrace.sinks.queue.kafka import KafkaOptions, KafkaSender
from tailrace.sinks.queue.sender import Sender
from tests.sinks.queue.broker import Broker
from tests.sinks.queue.servers import STREAM, Faults

_RAISED = {
    Kind.RETRIABLE: "NotEnoughReplicasException",
    Kind.POISON: "RecordTooLargeException",
    Kind.INFRASTRUCTURE: "TopicAuthorizationException",
}


class KafkaQueue:
    """A topic of two partitions."""

    kind = "kafka"

    def __init__(
        self, broker: Broker, session: SparkSession, config: Mapping[str, str] | None = None
    ) -> None:
        self.topic = f"orders-{secrets.token_hex(4)}"
        self.faults = Faults()
        self.timeout_s = 120.0
        self.requests: list[int] = []
        self.broker = broker
        self.session = session
        self._make(config or {})

    def options(self) -> dict[str, object]:
        place = {"bootstrap_servers": self.broker.address, "topic": self.topic}
        return {**place, "timeout": self.timeout_s}

    def sender(self, stream: str = STREAM) -> Sender:
        return _FailingSender(self, stream)

    def received(self) -> list[dict[str, Any]]:
        return [json.loads(row["value"]) for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        """Everything, in the order of each partition."""
        frame = self.session.read.format("kafka").options(
            **{"kafka.bootstrap.servers": self.broker.address, "subscribe": self.topic},
            includeHeaders="true",
        )
        found = frame.load().select("partition", "offset", "key", "value", "headers").toArrow()
        rows: list[dict[str, Any]] = found.to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def _make(self, config: Mapping[str, str]) -> None:
        java: Any = self.session._jvm
        settings = java.java.util.HashMap()
        settings.put("bootstrap.servers", self.broker.address)
        admin = java.org.apache.kafka.clients.admin.Admin.create(settings)
        topics, own = java.java.util.ArrayList(), java.java.util.HashMap()
        for name, value in config.items():
            own.put(name, value)
        topic = java.org.apache.kafka.clients.admin.NewTopic
        replicas = java.java.lang.Short.parseShort("1")
        topics.add(topic(self.topic, 2, replicas).configs(own))
        admin.createTopics(topics).all().get()
        admin.close()


class _FailingSender(KafkaSender):
    """Writes what is not hit, and then fails as Spark does."""

    def __init__(self, queue: KafkaQueue, stream: str) -> None:
        super().__init__(KafkaOptions.parse(queue.options()), queue.session, stream)
        self._queue = queue

    def write(self, messages: Sequence[Message]) -> None:
        faults = self._queue.faults
        self._queue.requests.append(len(messages))
        if faults.is_down:
            raise PySparkException("org.apache.kafka.common.errors.TimeoutException: no answer")
        hits = [faults.strikes(each.payload) for each in messages]
        taken = [each for each, hit in zip(messages, hits, strict=True) if hit is None]
        if taken:
            super().write(taken)
        faults.hold(len(self._queue.requests))
        for hit in filter(None, hits):
            raise PySparkException(f"org.apache.kafka.common.errors.{_RAISED[hit]}: no")
