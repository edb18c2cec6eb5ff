"""Sends the same changes through each queue's sink and through a plain loop, in turns, and times
both. The loops make the same messages with json.dumps; that they are the same is looked at first.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.programs.sinks import Parts, Sinks
from bench.programs.talk import say, task
from bench.programs.upsert import RELATION, changes_of
from tailrace import __version__
from tailrace.decode import TableChanges
from tailrace.model import Op
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID
from tailrace.sinks import open_sink
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.json_columns import Style
from tailrace.spark.session import spark_session
from tailrace.storage import FileStore
from tests.jars import jars
from tests.sinks.queue.broker import Broker
from tests.sinks.queue.kafka_queue import KafkaQueue

_STREAM: Final = "bench"
_SECRET: Final = "the secret of the benchmark"
_WEBHOOK_BATCH: Final = 100
_KINESIS_BATCH: Final = 500
_REGION: Final = "us-east-1"
_CHANGES_PER_TRANSACTION: Final = 100
_COMMIT_TS_US: Final = 1_768_471_200_000_000
_LETTERS: Final = {"insert": "c", "update": "u"}

Send = Callable[[list[tuple[str, bytes]]], None]
"""Messages of a batch, each with its key."""


def main() -> None:
    """Measure all that is wanted."""
    wanted = task()
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    directory = Path(wanted["directory"])
    at = Sinks("", directory)
    parts = {kind: _parts(rows, wanted["batch_rows"]) for kind, rows in wanted["rows"].items()}
    _require_same_messages(parts["webhook"][0])
    _webhook(at, directory, wanted["webhook"], parts["webhook"], wanted["rounds"])
    _kinesis(at, directory, wanted["kinesis"], parts["kinesis"], wanted["rounds"])
    if "kafka" in parts:
        _kafka(at, directory, parts["kafka"], wanted["rounds"])
    say("done", seconds=at.seconds)


def _webhook(at: Sinks, directory: Path, url: str, parts: Parts, rounds: int) -> None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)

    def send(messages: list[tuple[str, bytes]]) -> None:
        for batch in _batches(messages, _WEBHOOK_BATCH):
            body = b'{"messages":[' + b",".join(payload for _, payload in batch) + b"]}"
            now = int(time.time())
            mac = hmac.new(_SECRET.encode(), f"{now}.".encode() + body, hashlib.sha256)
            signature = f"t={now},v1={mac.hexdigest()}"
            headers = {"Content-Type": "application/json", "Tailrace-Signature": signature}
            connection.request("POST", "/", body, headers)
            connection.getresponse().read()

    options: dict[str, object] = {"type": "webhook", "url": url, "secret": _SECRET}
    _compare(at, directory, options, send, parts, rounds)
    connection.close()


def _kinesis(at: Sinks, directory: Path, url: str, parts: Parts, rounds: int) -> None:
    client: Any = boto3.client("kinesis", endpoint_url=url, region_name=_REGION)
    for name in ("ours", "plain"):
        client.create_stream(StreamName=name, ShardCount=4)

    def send(messages: list[tuple[str, bytes]]) -> None:
        for batch in _batches(messages, _KINESIS_BATCH):
            records = [{"Data": payload, "PartitionKey": key} for key, payload in batch]
            client.put_records(StreamName="plain", Records=records)

    place = {"stream": "ours", "region": _REGION, "endpoint_url": url}
    _compare(at, directory, {"type": "kinesis", **place}, send, parts, rounds)
    client.close()


def _kafka(at: Sinks, directory: Path, parts: Parts, rounds: int) -> None:
    settings = {"spark.jars": ",".join(jars("connector"))}
    session = spark_session(
        master="local[2]", app_name="tailrace bench", work_dir=directory, settings=settings
    )
    try:
        with closing(Broker(directory / "broker")) as broker:
            ours, plain = (KafkaQueue(broker, session) for _ in range(2))
            write = {"kafka.bootstrap.servers": broker.address, "topic": plain.topic}

            def send(messages: list[tuple[str, bytes]]) -> None:
                keys, payloads = zip(*messages, strict=True)
                rows = pa.table({"key": [key.encode() for key in keys], "value": list(payloads)})
                session.createDataFrame(rows).write.format("kafka").options(**write).save()

            options = {"type": "kafka", **ours.options()}
            _compare(at, directory, options, send, parts, rounds, session)
    finally:
        session.stop()


def _compare(
    at: Sinks,
    directory: Path,
    options: dict[str, object],
    send: Send,
    parts: Parts,
    rounds: int,
    session: SparkSession | None = None,
) -> None:
    kind = str(options["type"])
    store = FileStore(directory / kind)

    def plain() -> None:
        for part in parts:
            send(list(_plain_messages(part)))

    made = [list(_plain_messages(part)) for part in parts]

    def sent() -> None:
        for messages in made:
            send(messages)

    with closing(open_sink(options, store=store, stream=_STREAM, session=session)) as sink:
        # Connections, and what a JVM compiles.
        at.write(sink, parts[:1])
        send(made[0])
        at.compare(kind, lambda: at.write(sink, parts), plain, rounds, sent=sent)


def _plain_messages(part: pa.Table) -> Iterator[tuple[str, bytes]]:
    """The key and the envelope of each change, as one would write it for this one table."""
    for row in part.to_pylist():
        after = {name: _plain(row[name]) for name in RELATION.column_names}
        ts_ms = _ms(row[COMMIT_TS])
        value = {
            "before": None,
            "after": after,
            "source": {
                "version": __version__,
                "connector": "postgresql",
                "name": _STREAM,
                "snapshot": "false",
                "db": "",
                "schema": RELATION.schema,
                "table": RELATION.name,
                "ts_ms": ts_ms,
                "txId": row[XID],
                "lsn": row[COMMIT_LSN],
                "xmin": None,
                "event_id": f"{row[COMMIT_LSN]:016X}-{row[ORDINAL]}",
                "batch": 1,
            },
            "op": _LETTERS[row[OP]],
            "ts_ms": ts_ms,
        }
        yield str(row["id"]), json.dumps(value, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _require_same_messages(part: pa.Table) -> None:
    ours = Renderer(_STREAM, Style.DEBEZIUM).changes([TableChanges(RELATION, part)], 1)
    for message, (_, payload) in zip(ours, _plain_messages(part), strict=True):
        if json.loads(message.payload) != json.loads(payload):
            raise SystemExit(f"not the same message: {message.payload!r} {payload!r}")


def _batches(messages: list[tuple[str, bytes]], size: int) -> Iterable[list[tuple[str, bytes]]]:
    return (messages[first : first + size] for first in range(0, len(messages), size))


def _parts(count: int, size: int) -> Parts:
    random = np.random.default_rng(1)
    firsts = range(0, count, size)
    return [
        _positioned(
            changes_of(np.arange(first, min(first + size, count)), Op.INSERT, random), first
        )
        for first in firsts
    ]


def _positioned(part: pa.Table, first: int) -> pa.Table:
    """With the places that changes of small transactions have in the log."""
    numbers = np.arange(first, first + part.num_rows)
    meta = {
        COMMIT_LSN: 0x1000 + numbers // _CHANGES_PER_TRANSACTION,
        ORDINAL: numbers % _CHANGES_PER_TRANSACTION,
        COMMIT_TS: np.full(part.num_rows, _COMMIT_TS_US),
        XID: 700 + numbers // _CHANGES_PER_TRANSACTION,
    }
    for name, values in meta.items():
        field = part.schema.field(name)
        column = pa.array(values.astype(np.int64)).cast(field.type)
        part = part.set_column(part.schema.get_field_index(name), field, column)
    return part


if __name__ == "__main__":
    main()
