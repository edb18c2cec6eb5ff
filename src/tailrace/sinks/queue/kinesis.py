"""Messages to a Kinesis stream: PutRecords, within its limits.

A row's messages have one partition key and so one shard; the next is sent when the one before is
acknowledged, so the shard has them in order. A request is answered for each record by itself.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import boto3
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from tailrace.errors import ConfigError, SinkError
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import Message, delivery_id
from tailrace.sinks.option_values import seconds, text
from tailrace.sinks.queue.errors import kinesis_failure, no_answer
from tailrace.sinks.queue.sender import RequestLimits, Sought

LIMITS: Final = RequestLimits(
    message_count=500, request_bytes=5 << 20, message_bytes=1 << 20, overhead_bytes=64
)
"""Kinesis counts the partition key as well: 32 hex digits, or an event id."""

READ_PATIENCE_S: Final = 30.0
"""How long a page is asked for again: a shard may be read five times and 2 MB a second, and a page
of 10 MB is paid for with five seconds in which every other one is refused.
"""

_READ_PAUSE_S: Final = 0.25
_STREAM: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_HINT: Final = "see to the stream and to the rights; delivery then goes on by itself"


@dataclass(frozen=True, slots=True)
class KinesisOptions:
    """`endpoint_url` is for servers other than Amazon's."""

    stream: str
    region: str | None = None
    endpoint_url: str | None = None
    timeout_s: float = 10.0

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> KinesisOptions:
        """From the options of a sink; raises ConfigError."""
        stream = text(options, "stream")
        if not _STREAM.fullmatch(stream):
            # Kinesis would refuse each request as invalid, as if its records were.
            raise ConfigError(
                f"stream {stream!r} is no name that Kinesis has", hint="a-z, A-Z, 0-9, _, . and -"
            )
        return cls(
            stream=stream,
            region=text(options, "region") if "region" in options else None,
            endpoint_url=text(options, "endpoint_url") if "endpoint_url" in options else None,
            timeout_s=seconds(options, "timeout", 10.0),
        )

    def places(self) -> frozenset[str]:
        """Where messages go; a region that is not told is that of the environment."""
        region = self.region or boto3.session.Session().region_name or ""
        endpoint = (self.endpoint_url or "").rstrip("/").lower()
        return frozenset({f"{endpoint} {region} {self.stream}"})


class KinesisSender:
    """A client of boto3, which may be used by threads side by side. It retries nothing itself.

    A client looks its keys up once. So when something is wrong that a person has to see to, another
    one is made, which finds the keys of then.
    """

    limits = LIMITS
    reads_back = True

    def __init__(self, options: KinesisOptions, sends_for: str) -> None:
        """`sends_for` names the stream of ours whose messages it sends and looks for."""
        self._stream = options.stream
        self._sends_for = sends_for
        self._options = options
        try:
            self._client: Any = _client(options)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"kinesis cannot be used: {error}", hint="set region") from error

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        """One PutRecords."""
        records = [{"Data": each.payload, "PartitionKey": each.partition_key} for each in messages]
        try:
            answer = self._client.put_records(StreamName=self._stream, Records=records)
        except (ClientError, BotoCoreError) as error:
            return [self._failed(error)] * len(messages)
        told = answer.get("Records", ())
        if len(told) != len(messages):
            # Of something between us and Kinesis, a proxy's page for instance.
            return [no_answer("what was answered does not tell of each record")] * len(messages)
        return [_outcome(record) for record in told]

    def arrived(self, sought: Sought) -> frozenset[str]:
        """Read every shard from the one time to the other, or to where it ends now, however slowly
        that is allowed.
        """
        try:
            return frozenset(
                found
                for shard in self._shards()
                for data in self._records(shard, sought)
                if (found := delivery_id_of(data, self._sends_for))
            )
        except (ClientError, BotoCoreError) as error:
            raise SinkError(
                f"what has arrived cannot be read: {self._failed(error)}", hint=_HINT, retry=True
            ) from error
        except KeyError as error:
            message = f"what has arrived cannot be read: what was answered has no {error}"
            raise SinkError(message, retry=True) from error

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _failed(self, error: ClientError | BotoCoreError) -> Failure:
        failure = _failure(error)
        if failure.kind is Kind.INFRASTRUCTURE:
            with suppress(BotoCoreError, ValueError):
                self._client = _client(self._options)
        return failure

    def _shards(self) -> Iterator[str]:
        # Not by the client's own paginator: it names the stream beside the token, and is refused.
        asked = {"StreamName": self._stream}
        while asked:
            page = self._client.list_shards(**asked)
            yield from (shard["ShardId"] for shard in page["Shards"])
            asked = {"NextToken": page["NextToken"]} if page.get("NextToken") else {}

    def _records(self, shard: str, sought: Sought) -> Iterator[bytes]:
        iterator = self._client.get_shard_iterator(
            StreamName=self._stream,
            ShardId=shard,
            ShardIteratorType="AT_TIMESTAMP",
            Timestamp=datetime.fromtimestamp(sought.since_s, UTC),
        )["ShardIterator"]
        began, until = datetime.now(UTC), None
        if sought.until_s is not None:
            until = datetime.fromtimestamp(sought.until_s + self._options.timeout_s, UTC)
        while iterator:
            sought.go_on()
            answer = self._page(iterator)
            yield from (record["Data"] for record in answer["Records"])
            if _is_past(answer, until) or _is_last(answer, began):
                return
            iterator = answer.get("NextShardIterator")

    def _page(self, iterator: str) -> Mapping[str, Any]:
        deadline = time.monotonic() + READ_PATIENCE_S
        while True:
            try:
                answer: Mapping[str, Any] = self._client.get_records(ShardIterator=iterator)
                return answer
            except ClientError as error:
                if _failure(error).kind is not Kind.RETRIABLE or time.monotonic() >= deadline:
                    raise
            time.sleep(_READ_PAUSE_S)


def _client(options: KinesisOptions) -> BaseClient:
    return boto3.session.Session().client(
        "kinesis",
        region_name=options.region,
        endpoint_url=options.endpoint_url,
        config=Config(
            connect_timeout=options.timeout_s,
            read_timeout=options.timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
        ),
    )


def _is_past(page: Mapping[str, Any], until: datetime | None) -> bool:
    """Whether all that follows came later than anything that is looked for."""
    records = page["Records"]
    return bool(
        records and until is not None and records[-1]["ApproximateArrivalTimestamp"] > until
    )


def _is_last(page: Mapping[str, Any], began: datetime) -> bool:
    """Whether the shard is read up to where it ended when that began: others may write to it all
    the time. A server that always says that nothing is behind is believed only then.
    """
    records = page["Records"]
    is_new = not records or records[-1]["ApproximateArrivalTimestamp"] >= began
    return is_new and not page["MillisBehindLatest"]


def delivery_id_of(data: bytes, sent_for: str) -> str:
    """The delivery id of a message of that stream of ours, in either envelope; empty for anything
    else, also for the same change of another stream.
    """
    try:
        match json.loads(data):
            case {"event_id": str(found), "batch": int(batch), "stream": str(name), **rest} | {
                "source": {"event_id": str(found), "batch": int(batch), "name": str(name), **rest}
            } if name == sent_for:
                return delivery_id(found, batch=str(batch), replay=str(rest.get("replay", "")))
    except ValueError:
        pass
    return ""


def _outcome(record: Mapping[str, str]) -> Failure | None:
    code = record.get("ErrorCode")
    if not code:
        return None
    return kinesis_failure(code, record.get("ErrorMessage") or "", is_shared=False)


def _failure(error: ClientError | BotoCoreError) -> Failure:
    if isinstance(error, ClientError):
        found = error.response.get("Error", {})
        return kinesis_failure(found.get("Code", ""), found.get("Message", ""), is_shared=True)
    if isinstance(error, NoCredentialsError | NoRegionError | PartialCredentialsError):
        return Failure(Kind.INFRASTRUCTURE, type(error).__name__, str(error), hint=_HINT)
    return no_answer(str(error))
