"""Messages to a topic of Kafka, by Spark's own connector: one job for each request.

A row's messages have its key and so one partition; the next is sent when the one before is
acknowledged, so the partition has them in order. A job that fails says nothing about single
messages: those that arrived all the same are found in the topic, by their headers.
The producer is idempotent: what it repeats by itself is there once.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pydantic import SecretStr
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError, SinkError
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import Message, delivery_id
from tailrace.sinks.option_values import count, seconds, text
from tailrace.sinks.queue.errors import kafka_failure, no_answer
from tailrace.sinks.queue.sender import CLOCKS_S, RequestLimits, Sought
from tailrace.spark.jar import has_class

OPTIONS: Final = ("bootstrap_servers", "topic", "properties", "timeout", "message_bytes")
EVENT_ID: Final = "event_id"
STREAM: Final = "stream"
TABLE: Final = "table"
BATCH: Final = "batch"
REPLAY: Final = "replay"
"""Headers; the last only of what a replay sends."""

_PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_OWN: Final = (
    *("bootstrap.servers", "acks", "enable.idempotence", "max.request.size", "max.block.ms"),
    *("request.timeout.ms", "delivery.timeout.ms", "default.api.timeout.ms"),
)
_RAISED: Final = re.compile(r"org\.apache\.kafka\.\S*?\.(\w+)Exception(?:: (.*))?")
_FIND: Final = "CAST(try_element_at(filter(headers, h -> h.key = '{0}'), 1).value AS STRING) AS {0}"
_REDACTION: Final = {"spark.sql.redaction.options.regex": "(?i)url|^kafka[.]"}
"""Spark shows the options of a write in its plans, its UI and its event log, but for those whose
names it takes for secrets; a private key, for instance, it does not.
"""

_SETTLES_S: Final = 0.2
"""A task that fails does not wait for what it has sent: the broker has it in a moment, or never."""

_LOOKS_S: Final = 0.1
"""How often a reader looks whether it is to stop."""

ERRORS: Final = (PySparkException, Py4JError, ConnectionError)
"""What Spark raises, and what its driver's Java does when it is gone."""

_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`properties` are those of Kafka's clients: security, compression. They are never shown."""

    bootstrap_servers: str
    topic: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0
    message_bytes: int = 1_000_000

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> KafkaOptions:
        """From the options of a sink; raises ConfigError."""
        topic = text(options, "topic")
        if not _TOPIC.fullmatch(topic):
            raise ConfigError(
                f"topic {topic!r} is no name that Kafka has", hint="a-z, A-Z, 0-9, _, . and -"
            )
        properties = options.get("properties", {})
        if not isinstance(properties, Mapping):
            raise ConfigError("properties of a kafka sink must be names and values")
        if taken := [name for name in _OWN if name in properties]:
            raise ConfigError(f"properties of a kafka sink cannot have {taken[0]}")
        return cls(
            bootstrap_servers=text(options, "bootstrap_servers"),
            topic=topic,
            properties={str(name): _revealed(value) for name, value in properties.items()},
            timeout_s=seconds(options, "timeout", 10.0),
            message_bytes=count(options, "message_bytes", 1_000_000),
        )

    def places(self) -> frozenset[str]:
        """Where messages go: one for each server that is named, any of which tells a cluster."""
        servers = self.bootstrap_servers.lower().split(",")
        return frozenset(f"{server.strip()}/{self.topic}" for server in servers)

    def producer(self) -> dict[str, str]:
        """What Spark is told when it writes."""
        return self._client() | {
            "topic": self.topic,
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "kafka.max.request.size": str(max(1 << 20, self.message_bytes + (64 << 10))),
            "kafka.max.block.ms": self._ms(),
            "kafka.delivery.timeout.ms": self._ms(),
        }

    def consumer(self, since_s: float, until_s: float | None = None) -> dict[str, str]:
        """What Spark is told when it reads, from the one time to the other or to the end."""
        end = {} if until_s is None else {"endingTimestamp": _ms(until_s + self.timeout_s)}
        return (
            self._client()
            | end
            | {
                "subscribe": self.topic,
                "includeHeaders": "true",
                "startingTimestamp": _ms(since_s),
                "startingOffsetsByTimestampStrategy": "latest",
                "kafka.default.api.timeout.ms": self._ms(),
                "fetchOffset.numRetries": "1",
            }
        )

    def _client(self) -> dict[str, str]:
        return {
            **{f"kafka.{name}": value for name, value in self.properties.items()},
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.request.timeout.ms": self._ms(0.5),
        }

    def _ms(self, share: float = 1.0) -> str:
        return str(max(1, round(self.timeout_s * share * 1000)))


class KafkaSender:
    """Sends by jobs of a Spark session, side by side."""

    reads_back = True

    def __init__(self, options: KafkaOptions, session: SparkSession | None, sends_for: str) -> None:
        """`sends_for` names the stream whose messages it sends and looks for."""
        if session is None or not has_class(session, _PROVIDER):
            raise ConfigError(
                "Spark was started without its connector for Kafka",
                hint=f"add {_PACKAGE} in the version of Spark to spark.packages",
            )
        self._options = options
        for name, value in _REDACTION.items():
            session.conf.set(name, value)
        self._session = session
        self._sends_for = sends_for
        self.limits = RequestLimits(
            message_count=5_000,
            request_bytes=16 << 20,
            message_bytes=options.message_bytes,
            overhead_bytes=256,
        )

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        """One job; if it fails, a look at what has arrived."""
        began_s = time.time()
        try:
            self.write(messages)
        except ERRORS as error:
            return self._outcomes(messages, failure_of(str(error)), began_s)
        return [None] * len(messages)

    def write(self, messages: Sequence[Message]) -> None:
        """Run the job; raises one of ERRORS, and then any of the messages may have arrived."""
        # A job of several tasks fails with the first of them, while the others go on sending.
        frame = self._session.createDataFrame(_rows(messages, self._sends_for)).coalesce(1)
        frame.write.format("kafka").options(**self._options.producer()).save()

    def arrived(self, sought: Sought) -> frozenset[str]:
        """Read the headers of every partition from the one time to the other, or to its end."""
        with ThreadPoolExecutor(1, thread_name_prefix="tailrace-kafka") as reader:
            tag = f"tailrace-arrived-{secrets.token_hex(8)}"
            found = reader.submit(self._read, sought, tag)
            while not wait([found], timeout=_LOOKS_S).done:
                if sought.stop.is_set():
                    self._session.sparkContext.cancelJobsWithTag(tag)
        return found.result()

    def _read(self, sought: Sought, tag: str) -> frozenset[str]:
        sought.go_on()
        self._session.sparkContext.addJobTag(tag)
        options = self._options.consumer(sought.since_s, sought.until_s)
        try:
            return self._delivery_ids(options, {sought.sequence})
        except ERRORS as error:
            sought.go_on()
            failure = failure_of(str(error))
            raise SinkError(
                f"what has arrived cannot be read: {failure}", hint=failure.hint, retry=True
            ) from None

    def close(self) -> None:
        """The session belongs to the pipeline."""

    def _outcomes(
        self, messages: Sequence[Message], failure: Failure, began_s: float
    ) -> list[Failure | None]:
        time.sleep(_SETTLES_S)
        try:
            options = self._options.consumer(began_s - CLOCKS_S)
            arrived = self._delivery_ids(options, {each.sequence for each in messages})
        except ERRORS as error:
            # A producer only misses the topic that a consumer can say is not there.
            unread = failure_of(str(error))
            failure = unread if unread.kind is Kind.INFRASTRUCTURE else failure
            return [failure] * len(messages)
        return [None if each.delivery_id in arrived else failure for each in messages]

    def _delivery_ids(
        self, options: Mapping[str, str], sequences: Collection[int]
    ) -> frozenset[str]:
        """Of what the stream has sent of these batches. The executors choose: the topic may be full
        of what others have sent, this stream among them.
        """
        topic = self._session.read.format("kafka").options(**options).load()
        headers = topic.selectExpr(*map(_FIND.format, (EVENT_ID, BATCH, STREAM, REPLAY)))
        own = headers.where(headers[STREAM] == self._sends_for).where(headers[EVENT_ID].isNotNull())
        chosen = own.where(headers[BATCH].isin(*map(str, sequences)))
        return frozenset(
            delivery_id(row[EVENT_ID], batch=row[BATCH], replay=row[REPLAY] or "")
            for row in chosen.toArrow().to_pylist()
        )


def failure_of(trace: str) -> Failure:
    """What an error of Spark's says about Kafka, which may be nothing."""
    if found := _RAISED.search(trace):
        return kafka_failure(found[1], (found[2] or "").strip())
    lines = [line for line in trace.splitlines() if "Exception" in line] or [trace]
    return no_answer(lines[0].strip(" :"))


def _rows(messages: Sequence[Message], stream: str) -> pa.Table:
    """A row without a key goes to any partition."""
    return pa.table(
        {
            "key": [each.key.encode() or None for each in messages],
            "value": [each.payload for each in messages],
            "headers": _headers(messages, stream),
        },
        schema=_SCHEMA,
    )


def _headers(
    messages: Sequence[Message], stream: str
) -> pa.ListArray[pa.ListScalar[pa.StructType]]:
    """Those of each message, by the column: lists of pairs take twice as long as all of this."""
    columns: dict[str, Iterable[str]] = {
        EVENT_ID: (each.event_id for each in messages),
        STREAM: repeat(stream),
        TABLE: (each.table for each in messages),
        BATCH: (str(each.sequence) for each in messages),
    }
    if replays := [each.replay for each in messages if each.replay]:
        assert len(replays) == len(messages), "a sink sends for its stream or for replays"
        columns[REPLAY] = replays
    values = [value for row in zip(*columns.values(), strict=False) for value in row]
    pairs = pa.StructArray.from_arrays(
        [pa.array(list(columns) * len(messages)), pa.array(values, pa.string()).cast(pa.binary())],
        names=["key", "value"],
    )
    ends = pa.array(range(0, len(values) + 1, len(columns)), pa.int32())
    return pa.ListArray.from_arrays(ends, pairs)


def _ms(time_s: float) -> str:
    return str(round(time_s * 1000))


def _revealed(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
