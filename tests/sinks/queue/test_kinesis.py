"""The limits of Kinesis, and what is read back from it."""

from __future__ import annotations

import json
import time
from contextlib import closing
from threading import Event

import pytest
from botocore.awsrequest import AWSResponse

from tailrace.errors import SinkError
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.json_columns import Style
from tailrace.sinks.queue.kinesis import LIMITS, KinesisOptions, KinesisSender
from tailrace.storage import MemoryStore
from tests.sinks.queue.servers import STREAM, KinesisQueue, open_queue, sought
from tests.sinks.source import Source, batch_of


def test_f097_requests_stay_within_the_limits_and_oversize_records_are_dead_letters(
    kinesis: KinesisQueue,
) -> None:
    store, source = MemoryStore(), Source()
    for key in range(700):
        source.insert(id=key, doc="x" * (1 << 20) if key == 7 else "x")
    for key in range(700, 707):
        source.insert(id=key, doc="x" * 900_000)
    sink = open_queue(kinesis, store)
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    assert max(len(request) for request in kinesis.gate.requests) <= 500
    # A server that takes its time may be sent the same once more.
    assert len({each["source"]["event_id"] for each in kinesis.received()}) == 706
    kept = DeadLetters(store, STREAM)
    (letter,) = [kept.read(name) for name in kept.names()]
    assert letter.error.startswith("oversize") and json.loads(letter.key) == {"id": 7}
    assert LIMITS.request_bytes == 5 << 20 and LIMITS.message_bytes == 1 << 20


def test_f096_request_holds_one_record_of_a_key_so_that_a_refused_one_is_not_passed(
    kinesis: KinesisQueue,
) -> None:
    source = Source()
    source.insert(id=1, n=0)
    for number in range(1, 6):
        source.update(1, n=number)
    kinesis.faults.fail(1, Kind.RETRIABLE, times=2)
    sink = open_queue(kinesis, MemoryStore())
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    assert [len(request) for request in kinesis.gate.requests] == [1] * 8
    assert [message["after"]["n"] for message in kinesis.received()] == list(range(6))


def test_what_has_arrived_is_read_back_from_every_shard(kinesis: KinesisQueue) -> None:
    before, source = time.time(), Source()
    for key in range(20):
        source.insert(id=key)
    sink = open_queue(kinesis, MemoryStore())
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    kinesis.client.put_record(StreamName=kinesis.stream, Data=b"not ours", PartitionKey="x")
    sender = kinesis.sender()
    assert len(sender.arrived(sought(before - 1.0))) == 20
    sender.close()


def test_shards_of_a_stream_too_large_for_one_page_are_all_listed(kinesis: KinesisQueue) -> None:
    """The servers here have only one page; Kinesis refuses a token beside the stream's name."""
    asked = []

    def answer(params: dict[str, bytes], **_: object) -> tuple[AWSResponse, dict[str, object]]:
        asked.append(json.loads(params["body"]))
        more = {"NextToken": "more"} if len(asked) == 1 else {}
        shards = [{"ShardId": f"shard-{len(asked)}"}]
        return AWSResponse("", 200, {}, None), {"Shards": shards, **more}

    with closing(kinesis.sender()) as sender:
        assert isinstance(sender, KinesisSender)
        sender._client.meta.events.register("before-call.kinesis.ListShards", answer)
        assert list(sender._shards()) == ["shard-1", "shard-2"]
    assert asked == [{"StreamName": kinesis.stream}, {"NextToken": "more"}]


@pytest.mark.parametrize("page", [{}, {"Records": [{}]}], ids=["no answer of Kinesis", "too few"])
def test_f097_answer_that_does_not_tell_of_each_record_is_none(
    kinesis: KinesisQueue, page: dict[str, object]
) -> None:
    def answer(**_: object) -> tuple[AWSResponse, dict[str, object]]:
        return AWSResponse("", 200, {}, None), page

    source = Source()
    source.insert(id=1)
    source.insert(id=2)
    messages = Renderer(STREAM, Style.PLAIN).changes([source.take()], 1)
    with closing(kinesis.sender()) as sender:
        assert isinstance(sender, KinesisSender)
        sender._client.meta.events.register("before-call.kinesis", answer)
        outcomes = sender.send(messages)
        with pytest.raises(SinkError) as raised:
            sender.arrived(sought(0.0))
    assert raised.value.retry
    assert [each and (each.kind, each.is_answered) for each in outcomes] == [
        (Kind.RETRIABLE, False)
    ] * 2


def test_f097_reads_that_are_throttled_are_made_again_where_they_were(
    kinesis: KinesisQueue,
) -> None:
    before, source = time.time(), Source()
    for key in range(20):
        source.insert(id=key)
    sink = open_queue(kinesis, MemoryStore())
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    kinesis.faults.refused_reads = 3
    with closing(kinesis.sender()) as sender:
        assert len(sender.arrived(sought(before - 1.0))) == 20
    assert not kinesis.faults.refused_reads


def test_shard_that_others_write_to_all_the_time_is_read_to_its_end(
    kinesis: KinesisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = KinesisSender(
        KinesisOptions(kinesis.stream, "us-east-1", kinesis.client.meta.endpoint_url), STREAM
    )
    read, ends, left = sender._client.get_records, ("0", str(2**128 - 2**64)), iter(range(20))

    def read_behind_a_writer(**asked: str) -> object:
        next(left)
        for end in ends:
            kinesis.client.put_record(
                StreamName=kinesis.stream, Data=b"{}", PartitionKey="x", ExplicitHashKey=end
            )
        return read(**asked)

    monkeypatch.setattr(sender._client, "get_records", read_behind_a_writer)
    assert sender.arrived(sought(time.time() - 60.0)) == frozenset()
    sender.close()


def test_f098_keys_that_are_exchanged_are_found_without_a_restart(
    moto: KinesisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    source.insert(id=1)
    batch = batch_of(1, source.take(), stream=STREAM)
    moto.faults.fail(1, Kind.INFRASTRUCTURE)
    sink = open_queue(moto, MemoryStore())
    # The first refusal is of the old keys, and the next try comes with what is there then.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another-key")
    with pytest.raises(SinkError, match="AccessDenied"):
        sink.write(batch)
    assert "another-key" not in moto.gate.authorization
    moto.faults.clear()
    sink.write(batch)
    sink.close()
    assert "another-key" in moto.gate.authorization


def test_f098_missing_stream_and_missing_server_stop_the_stream(kinesis: KinesisQueue) -> None:
    kinesis.stream = "nowhere"
    source = Source()
    source.insert(id=1)
    sink = open_queue(kinesis, MemoryStore())
    with pytest.raises(SinkError, match="ResourceNotFoundException") as raised:
        sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    assert raised.value.retry and raised.value.hint
    options = KinesisOptions("orders", "us-east-1", "http://127.0.0.1:1", timeout_s=1.0)
    with pytest.raises(SinkError, match="no answer") as raised:
        KinesisSender(options, STREAM).arrived(sought(0.0))
    assert raised.value.retry


def test_f101_what_came_later_than_anything_sought_is_not_read(kinesis: KinesisQueue) -> None:
    """Two days of a shard take hours to read."""
    before, source = time.time(), Source()
    for key in range(20):
        source.insert(id=key)
    sink = open_queue(kinesis, MemoryStore())
    sink.write(batch_of(1, source.take(), stream=STREAM))
    sink.close()
    pages: list[object] = []
    with closing(kinesis.sender()) as sender:
        assert isinstance(sender, KinesisSender)
        read = sender._client.get_records

        def read_one(**asked: object) -> object:
            pages.append(read(**asked, Limit=1))
            return pages[-1]

        sender._client.get_records = read_one
        found = sender.arrived(sought(before - 1.0, until_s=before - 1.0 - kinesis.timeout_s))
    # Of each shard as much as tells that it is over.
    assert len(pages) == len(found) == 2


def test_f101_search_for_what_has_arrived_ends_when_the_stream_stops(
    kinesis: KinesisQueue,
) -> None:
    stop = Event()
    stop.set()
    with closing(kinesis.sender()) as sender, pytest.raises(SinkError, match="stop") as raised:
        sender.arrived(sought(0.0, stop=stop))
    assert raised.value.retry
