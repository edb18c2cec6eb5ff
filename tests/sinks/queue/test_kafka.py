"""What a consumer of a topic may rely on, and what a real broker refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession

from tailrace.cli.config import parse
from tailrace.errors import ConfigError, SinkError
from tailrace.sinks import open_sink
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.message import delivery_id
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.json_columns import Style
from tailrace.sinks.queue.kafka import KafkaOptions, KafkaSender, failure_of
from tailrace.storage import MemoryStore
from tests.capture.running import wait_until
from tests.sinks.queue.broker import Broker
from tests.sinks.queue.kafka_queue import KafkaQueue
from tests.sinks.queue.servers import STREAM, open_queue, sought
from tests.sinks.source import Source, batch_of

CONFIG = """
streams:
  orders:
    sink:
      type: kafka
      bootstrap_servers: {servers}
      topic: {topic}
      envelope: plain
      properties: {{compression.type: gzip, client.id: hush-hush}}
"""


@pytest.mark.spark
@pytest.mark.server
def test_messages_have_the_row_key_and_a_header_with_the_event_id(kafka: KafkaQueue) -> None:
    text = CONFIG.format(servers=kafka.broker.address, topic=kafka.topic)
    config = parse(text, root=Path("/"), environ={})
    assert "hush-hush" not in repr(config)
    options = config.streams[STREAM].sink.model_dump()
    sink = open_sink(options, session=kafka.session, store=MemoryStore(), stream=STREAM)
    source = Source()
    for key in range(10):
        source.insert(id=key, n=0)
    for key in range(10):
        source.update(key, n=1)
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    partitions: dict[bytes, set[int]] = {}
    for row in kafka.rows():
        value, headers = json.loads(row["value"]), {h["key"]: h["value"] for h in row["headers"]}
        assert json.loads(row["key"]) == value["key"] == {"id": value["row"]["id"]}
        assert headers["event_id"].decode() == value["event_id"]
        assert headers["table"].decode() == value["table"]
        assert headers["batch"].decode() == str(value["batch"]) == "1"
        partitions.setdefault(row["key"], set()).add(row["partition"])
    assert len(partitions) == 10 and all(len(found) == 1 for found in partitions.values())
    assert set.union(*partitions.values()) == {0, 1}


@pytest.mark.spark
@pytest.mark.server
def test_f097_f098_f101_what_the_broker_refuses_is_a_dead_letter_and_a_missing_topic_stops(
    broker: Broker, delta_session: SparkSession
) -> None:
    kafka = KafkaQueue(broker, delta_session, {"max.message.bytes": "5000"})
    store, source = MemoryStore(), Source()
    for key in range(8):
        source.insert(id=key, doc="é" * 10_000 if key == 3 else "x")
    source.update(3, doc="small again")
    sink = open_queue(kafka, store)
    sink.write(batch_of(1, source.take(), stream=STREAM))
    kept = DeadLetters(store, STREAM)
    refused, behind = [kept.read(name) for name in kept.names()]
    assert refused.error.startswith("RecordTooLarge") and not behind.error
    assert json.loads(refused.key) == json.loads(behind.key) == {"id": 3}
    found = [message["after"]["id"] for message in kafka.received()]
    assert sorted(set(found)) == [0, 1, 2, 4, 5, 6, 7]
    assert len(found) <= 2 * 7, "read back: not each again with each job that failed"
    sink.close()
    kafka.topic, kafka.timeout_s = "nowhere", 3.0
    sink = open_queue(kafka, MemoryStore())
    source.insert(id=9)
    with pytest.raises(SinkError, match="UnknownTopicOrPartition") as raised:
        sink.write(batch_of(2, source.take(), stream=STREAM))
    sink.close()
    assert raised.value.retry and "topic" in raised.value.hint


@pytest.mark.spark
@pytest.mark.server
def test_f101_broker_that_stops_answering_costs_nothing_and_keeps_the_order(
    kafka: KafkaQueue,
) -> None:
    store, source = MemoryStore(), Source()
    kafka.timeout_s = 3.0
    sink = open_queue(kafka, store, elapsed_s=0.1)
    source.insert(id=1, n=0)
    sink.write(batch_of(1, source.take(), stream=STREAM))
    for number in range(1, 4):
        source.update(1, n=number)
    batch = batch_of(2, source.take(), stream=STREAM)
    kafka.broker.stop()
    try:
        with pytest.raises(SinkError, match="no answer") as raised:
            sink.write(batch)
    finally:
        kafka.broker.go_on()
    assert raised.value.retry and not DeadLetters(store, STREAM).names()
    sink.write(batch)
    sink.close()
    found = [message["after"]["n"] for message in kafka.received()]
    assert list(dict.fromkeys(found)) == [0, 1, 2, 3]
    (again, *_) = Renderer(STREAM, Style.DEBEZIUM).changes(batch.tables, 3, replay="r1")
    assert kafka.sender().send([again]) == [None]
    sources = [message["source"] for message in kafka.received()]
    ids = {
        delivery_id(source["event_id"], batch=str(source["batch"]), replay="")
        for source in sources
        if "replay" not in source
    }
    for number in (1, 2, 3):
        of = {each for each in (*ids, again.delivery_id) if f"@{number}@" in each}
        assert kafka.sender().arrived(sought(0.0, number)) == of != set()


@pytest.mark.spark
@pytest.mark.server
def test_f120_properties_are_in_no_plan_of_spark(kafka: KafkaQueue) -> None:
    source = Source()
    source.insert(id=1, n=0)
    batch = batch_of(1, source.take(), stream=STREAM)
    properties = {"ssl.keystore.key": SecretStr("a hidden key"), "client.id": "hidden"}
    options = KafkaOptions.parse({**kafka.options(), "properties": properties})
    sender = KafkaSender(options, kafka.session, STREAM)
    (message,) = Renderer(STREAM, Style.DEBEZIUM).changes(batch.tables, 1)
    assert sender.send([message]) == [None]
    wait_until(lambda: any(kafka.topic in plan for plan in _plans(kafka.session)))
    assert not any("hidden" in plan for plan in _plans(kafka.session))


def _plans(session: SparkSession) -> list[str]:
    """As the UI shows them, and the event log."""
    java: Any = session._jsparkSession
    found = java.sharedState().statusStore().executionsList()
    return [found.apply(at).physicalPlanDescription() for at in range(found.size())]


def test_session_without_the_connector_is_refused_with_the_package_to_add() -> None:
    options = {"type": "kafka", "bootstrap_servers": "h:1", "topic": "t"}
    with pytest.raises(ConfigError, match="without its connector") as raised:
        open_sink(options, store=MemoryStore(), stream=STREAM)
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13" in raised.value.hint


def test_f101_producer_is_idempotent_whatever_the_properties_say() -> None:
    base = {"bootstrap_servers": "h:1", "topic": "t"}
    options = KafkaOptions.parse({**base, "properties": {"linger.ms": SecretStr("50")}})
    told = options.producer()
    assert (told["kafka.enable.idempotence"], told["kafka.acks"]) == ("true", "all")
    assert told["kafka.linger.ms"] == "50" and "linger" not in repr(options)
    with pytest.raises(ConfigError, match=r"cannot have enable\.idempotence"):
        KafkaOptions.parse({**base, "properties": {"enable.idempotence": "false"}})


@pytest.mark.parametrize("topic", ["", "a topic", "..", "x" * 250])
def test_topic_must_have_a_name_that_kafka_has(topic: str) -> None:
    with pytest.raises(ConfigError, match="topic"):
        KafkaOptions.parse({"bootstrap_servers": "h:1", "topic": topic})


def test_failure_is_found_in_the_trace_of_a_job() -> None:
    lost = "Task 0 in stage 46.0 failed 1 times, most recent failure: Lost task 0.0 in stage 46.0"
    trace = (
        f"An error occurred while calling o1.save.\n: org.apache.spark.SparkException: {lost}:"
        " org.apache.kafka.common.errors.RecordTooLargeException: The message is 416 bytes.\n"
        "\tat org.apache.kafka.clients.producer.KafkaProducer.send(KafkaProducer.java:1)"
    )
    failure = failure_of(trace)
    assert failure.kind is Kind.POISON
    assert str(failure) == "RecordTooLarge: The message is 416 bytes."
    other = failure_of("An error occurred while calling o1.save.\n: a.LostException: executor gone")
    assert not other.is_answered and other.message == "a.LostException: executor gone"


@pytest.mark.spark
@pytest.mark.server
def test_f101_of_a_topic_that_others_write_to_only_what_is_sought_comes_to_the_driver(
    kafka: KafkaQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, source = time.time(), Source()
    for key in range(20):
        source.insert(id=key)
    changes, render = source.take(), Renderer(STREAM, Style.DEBEZIUM).changes
    for stream, sequence in (("another", 1), ("another", 2), (STREAM, 1), (STREAM, 2)):
        messages = render([changes], sequence)
        assert kafka.sender(stream).send(messages) == [None] * 20
    wanted = {message.delivery_id for message in messages}
    read: list[int] = []
    kind = type(kafka.session.range(1))
    to_arrow = kind.toArrow

    def counted(frame: DataFrame) -> pa.Table:
        rows = to_arrow(frame)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(kind, "toArrow", counted)
    sender = kafka.sender()
    assert sender.arrived(sought(before - 60.0, 2)) == wanted
    assert read == [20]
    # What came behind the end is left alone; the timeout of a request is added to it.
    early = before - 1.0 - kafka.timeout_s
    assert sender.arrived(sought(early - 60.0, 2, until_s=early)) == frozenset()
    stop = Event()
    stop.set()
    with pytest.raises(SinkError, match="stop"):
        sender.arrived(sought(before - 60.0, 2, stop=stop))
