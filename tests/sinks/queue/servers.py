"""Queues on loopback that do harm on demand: an HTTP receiver, and Kinesis behind a gate."""

from __future__ import annotations

import base64
import io
import json
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol

import boto3

from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.queue.json_columns import Style
from tailrace.sinks.queue.kinesis import KinesisOptions, KinesisSender, delivery_id_of
from tailrace.sinks.queue.limits import WindowLimits
from tailrace.sinks.queue.opening import SENDERS
from tailrace.sinks.queue.options import QueueOptions
from tailrace.sinks.queue.sender import Sender, Sought
from tailrace.sinks.queue.sink import QueueSink
from tailrace.sinks.queue.webhook import WebhookOptions, WebhookSender
from tailrace.sinks.sink import stream_of
from tailrace.storage import Store

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

STREAM = "orders"
SECRET = "a secret of the tests"


@dataclass
class Faults:
    """What the server does to messages of some keys, and how often; `is_down` to everything.

    The first `slow_count` requests are answered `slow_s` after they are taken. After `holds_after`
    requests it takes the next one and does not answer until it is released. So many times it is
    not to be read from, because somebody does so already: `refused_reads`.
    """

    keys: dict[str, tuple[Kind, int]] = field(default_factory=dict)
    is_down: bool = False
    slow_s: float = 0.0
    slow_count: int = 1_000_000
    holds_after: int = 1_000_000
    refused_reads: int = 0
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, key: object, kind: Kind, times: int = 1_000_000) -> None:
        self.keys[str(key)] = (kind, times)

    def clear(self) -> None:
        self.keys.clear()
        self.is_down = False
        self.holds_after = 1_000_000
        self.released.set()

    def hold(self, taken_count: int) -> None:
        """Called with the number of requests that were taken, before the answer."""
        if taken_count <= self.slow_count:
            time.sleep(self.slow_s)
        if taken_count > self.holds_after:
            self.held.set()
            self.released.wait()

    def strikes(self, payload: bytes) -> Kind | None:
        """Whether the message is hit; counts."""
        with self.lock:
            key = str(id_of(json.loads(payload)))
            kind, left = self.keys.get(key, (None, 0))
            if kind is None or not left:
                return None
            self.keys[key] = (kind, left - 1)
            return kind


def sought(
    since_s: float,
    sequence: int = 1,
    *,
    until_s: float | None = None,
    stop: threading.Event | None = None,
) -> Sought:
    """What is looked for at a queue."""
    return Sought(sequence, since_s, until_s, stop or threading.Event())


def id_of(value: dict[str, Any]) -> object:
    row = value.get("after") or value.get("before") or {}
    return row.get("id")


class Target(Protocol):
    """Where messages go."""

    @property
    def kind(self) -> str:
        """The type of the sink."""
        ...

    def sender(self, stream: str = STREAM) -> Sender:
        """What sends the messages of a stream."""
        ...


class Queue(Target, Protocol):
    """A server under test, and what has arrived there."""

    faults: Faults

    def options(self) -> dict[str, object]:
        """How another process comes to it."""
        ...

    def received(self) -> list[dict[str, Any]]:
        """Every message, in the order of each key."""
        ...


@dataclass(frozen=True)
class Away:
    """A queue whose server is in another process."""

    kind: str
    options: dict[str, object]

    def sender(self, stream: str = STREAM) -> Sender:
        open_sender = SENDERS[self.kind].open
        return open_sender(self.options, None, stream)


def open_queue(
    queue: Target,
    store: Store,
    *,
    letters: LetterLimits | None = None,
    parks_exhausted: bool = False,
    window_count: int = 1000,
    window_bytes: int = 32 << 20,
    elapsed_s: float = 600.0,
    envelope: Style = Style.DEBEZIUM,
    stream: str = STREAM,
    dead: Target | None = None,
) -> QueueSink:
    """A sink that tries six times in short order; `dead` gets copies of its dead letters."""
    window = WindowLimits(
        message_count=window_count,
        bytes_max=window_bytes,
        attempt_count=6,
        elapsed_s=elapsed_s,
        first_wait_s=0.005,
        wait_s_max=0.02,
        parks_exhausted=parks_exhausted,
    )
    options = QueueOptions(envelope, 3, window, letters or LetterLimits())
    copies = None if dead is None else dead.sender()
    sender = queue.sender(stream_of(stream))
    return QueueSink(queue.kind, sender, store, stream, options, dead_letter_sender=copies)


class _Listener(ThreadingHTTPServer):
    """A client that is killed in the middle is no news."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing."""


class WebhookQueue:
    """Takes every request that none of its messages is hit in."""

    kind = "webhook"

    def __init__(self) -> None:
        self.faults = Faults()
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.status_of = {Kind.RETRIABLE: 503, Kind.POISON: 422, Kind.INFRASTRUCTURE: 403}
        self.asks_to_wait = False
        self.batch_bytes = 1 << 20
        self.timeout_s = 5.0
        self._lock = threading.Lock()
        self.server = _Listener(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/in?token=hidden"

    def options(self) -> dict[str, object]:
        return {"url": self.url, "secret": SECRET, "timeout": self.timeout_s, "batch_count": 4}

    def sender(self, stream: str = STREAM) -> Sender:
        options = WebhookOptions(self.url, SECRET, {"X-Tenant": "t1"}, batch_count=4)
        return WebhookSender(
            replace(options, timeout_s=self.timeout_s, batch_bytes=self.batch_bytes)
        )

    def received(self) -> list[dict[str, Any]]:
        with self._lock:
            return [each for body in self.bodies for each in json.loads(body)["messages"]]

    def answer(self, body: bytes, headers: dict[str, str]) -> int | None:
        """The status; None to hang up."""
        if self.faults.is_down:
            return None
        hits = [
            self.faults.strikes(json.dumps(each).encode()) for each in json.loads(body)["messages"]
        ]
        for hit in hits:
            if hit is not None:
                return self.status_of[hit]
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            count = len(self.bodies)
        self.faults.hold(count)
        return 204

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        queue = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = queue.answer(body, dict(self.headers))
                if status is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if status == 503 and queue.asks_to_wait:
                    self.send_header("Retry-After", "2")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler


class Gate:
    """Stands before a server of Kinesis: refuses records, and requests, as Kinesis would."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self.faults = Faults()
        self.requests: list[list[str]] = []
        self.authorization = ""
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        self.authorization = environ.get("HTTP_AUTHORIZATION", "")
        if not target.endswith("PutRecords"):
            with self._lock:
                if target.endswith("GetRecords") and self.faults.refused_reads:
                    self.faults.refused_reads -= 1
                    code = "ProvisionedThroughputExceededException"
                    return _error(start_response, "400 Bad Request", code)
                return list(self._app(environ, start_response))
        answer = self._put_records(environ, start_response)
        self.faults.hold(len(self.requests))
        return answer

    def _put_records(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        records = body["Records"]
        payloads = [base64.b64decode(record["Data"]) for record in records]
        if self.faults.is_down:
            return _error(start_response, "503 Service Unavailable", "ServiceUnavailable")
        hits = [self.faults.strikes(payload) for payload in payloads]
        if Kind.INFRASTRUCTURE in hits:
            return _error(start_response, "400 Bad Request", "AccessDeniedException")
        with self._lock:
            self.requests.append([delivery_id_of(payload, STREAM) for payload in payloads])
            if not any(hits):
                return list(self._app(_with(environ, body), start_response))
            taken = [record for record, hit in zip(records, hits, strict=True) if not hit]
            answers = iter(self._put(environ, {**body, "Records": taken}) if taken else [])
        merged = [next(answers) if hit is None else _refusal(hit) for hit in hits]
        answer = json.dumps({"FailedRecordCount": len(hits) - len(taken), "Records": merged})
        start_response("200 OK", [("Content-Type", "application/x-amz-json-1.1")])
        return [answer.encode()]

    def _put(self, environ: WSGIEnvironment, body: dict[str, Any]) -> list[dict[str, str]]:
        answer = b"".join(self._app(_with(environ, body), lambda *_: lambda _: None))
        records: list[dict[str, str]] = json.loads(answer)["Records"]
        return records


def _with(environ: WSGIEnvironment, body: dict[str, Any]) -> WSGIEnvironment:
    data = json.dumps(body).encode()
    return {**environ, "wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}


def _refusal(kind: Kind) -> dict[str, str]:
    codes = {Kind.RETRIABLE: "ProvisionedThroughputExceededException"}
    return {"ErrorCode": codes.get(kind, "InvalidArgumentException"), "ErrorMessage": "no"}


def _error(start_response: StartResponse, status: str, code: str) -> list[bytes]:
    start_response(status, [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps({"__type": code, "message": "no"}).encode()]


class KinesisQueue:
    """A stream of two shards."""

    kind = "kinesis"

    def __init__(self, endpoint: str, gate: Gate) -> None:
        self.stream = f"orders-{secrets.token_hex(4)}"
        self.faults = gate.faults = Faults()
        self.gate = gate
        self.timeout_s = 10.0
        gate.requests = []
        self._endpoint = endpoint
        self.client = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_stream(StreamName=self.stream, ShardCount=2)

    def options(self) -> dict[str, object]:
        place = {"stream": self.stream, "region": "us-east-1", "endpoint_url": self._endpoint}
        return {**place, "timeout": self.timeout_s}

    def sender(self, stream: str = STREAM) -> Sender:
        options = KinesisOptions(self.stream, "us-east-1", self._endpoint, self.timeout_s)
        return KinesisSender(options, stream)

    def received(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data in self.records()]

    def records(self) -> Iterator[bytes]:
        for shard in self.client.list_shards(StreamName=self.stream)["Shards"]:
            at = self.client.get_shard_iterator(
                StreamName=self.stream,
                ShardId=shard["ShardId"],
                ShardIteratorType="TRIM_HORIZON",
            )["ShardIterator"]
            while True:
                answer = self.client.get_records(ShardIterator=at)
                yield from (record["Data"] for record in answer["Records"])
                at = answer["NextShardIterator"]
                if not answer["Records"]:
                    break

    def close(self) -> None:
        self.client.close()


@contextmanager
def webhook() -> Iterator[WebhookQueue]:
    queue = WebhookQueue()
    try:
        yield queue
    finally:
        queue.close()
