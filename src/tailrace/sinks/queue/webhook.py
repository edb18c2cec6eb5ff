"""Messages to an HTTP address: `{"messages":[…]}`, signed, in order.

A request is taken whole or not at all, so it may hold several messages of a row. Its
`Idempotency-Key` is made of their delivery ids: the same messages sent again have the same key.
"""

from __future__ import annotations

import hashlib
import hmac
import http
import http.client
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import SecretStr

from tailrace import __version__
from tailrace.errors import ConfigError
from tailrace.sinks.letters.failure import Failure
from tailrace.sinks.letters.message import Message
from tailrace.sinks.option_values import count, seconds, text
from tailrace.sinks.queue.errors import http_failure, no_answer
from tailrace.sinks.queue.exchange import Connection
from tailrace.sinks.queue.sender import RequestLimits, Sought

OPTIONS: Final = ("url", "secret", "headers", "timeout", "batch_count", "batch_bytes")
SIGNATURE: Final = "Tailrace-Signature"

_URL: Final = re.compile(r"[!-~]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t -~\xa0-\xff]*")
_REASON_CHARS_MAX: Final = 200
_REASON_BYTES_MAX: Final = 64 << 10
_HIDDEN_CHARS: Final = 3
"""What is shorter is no secret, and stands in every answer."""


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """`secret` signs; `headers` are added to every request. Neither is ever shown."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0
    batch_count: int = 100
    batch_bytes: int = 1 << 20

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> WebhookOptions:
        """From the options of a sink; raises ConfigError."""
        return cls(
            url=text({"url": _revealed(options.get("url"))}, "url"),
            secret=_revealed(options.get("secret", "")),
            headers=_headers(options.get("headers", {})),
            timeout_s=seconds(options, "timeout", 10.0),
            batch_count=count(options, "batch_count", 100),
            batch_bytes=count(options, "batch_bytes", 1 << 20),
        )

    def places(self) -> frozenset[str]:
        """Where messages go, however the address is written; raises ConfigError."""
        address = _address(self.url)
        port = address.port or (443 if address.scheme == "https" else 80)
        path = f"{address.path or '/'}?{address.query}"
        return frozenset({f"{address.scheme}://{address.hostname}:{port}{path}"})


class WebhookSender:
    """One connection for each thread, kept open."""

    reads_back = False

    def __init__(self, options: WebhookOptions) -> None:
        address = _address(options.url)
        self._options = options
        self._host, self._port = address.hostname or "", address.port
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        self._secret = options.secret.encode()
        self._hidden = _hidden(options, address)
        self._local = threading.local()
        self._connections: list[Connection] = []
        self.limits = RequestLimits(
            message_count=options.batch_count,
            request_bytes=options.batch_bytes,
            message_bytes=options.batch_bytes,
            overhead_bytes=1,
            is_ordered=True,
        )

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        """One POST; what is answered holds for every message of it."""
        outcome = self._post(messages)
        return [outcome] * len(messages)

    def arrived(self, sought: Sought) -> frozenset[str]:
        """Nothing can be asked."""
        return frozenset()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    def _post(self, messages: Sequence[Message]) -> Failure | None:
        body = b'{"messages":[' + b",".join(message.payload for message in messages) + b"]}"
        connection = self._connection()
        connection.deadline.set()
        try:
            response, is_sent = self._exchange(connection, body, self._headers(messages, body))
            said = response.read(_REASON_BYTES_MAX)
            is_over = is_sent and response.isclosed()
            if not is_over or response.status < http.HTTPStatus.OK:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return no_answer(self._shown(str(error)) or type(error).__name__)
        if 200 <= response.status < 300:
            return None
        return http_failure(
            response.status,
            self._shown(said.decode(errors="replace"))[:_REASON_CHARS_MAX],
            wait_s=_wait_s(response.getheader("Retry-After")),
        )

    def _exchange(
        self, connection: Connection, body: bytes, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bool]:
        """The answer, and whether all was sent before it. Who refuses a request because of its size
        may say so and hang up, or read no further, in the middle of it; to take it, nobody may.
        """
        try:
            connection.request("POST", self._path, body, headers)
        except OSError:
            if connection.sock is None:
                raise
            with suppress(OSError, http.client.HTTPException):
                response = connection.getresponse()
                if response.status >= http.HTTPStatus.MULTIPLE_CHOICES:
                    return response, False
            raise
        return connection.getresponse(), True

    def _shown(self, said: str) -> str:
        """On one line, without what it may repeat of the request."""
        for word in self._hidden:
            said = said.replace(word, "…")
        return " ".join(said.split())

    def _headers(self, messages: Sequence[Message], body: bytes) -> dict[str, str]:
        digest = hashlib.sha256("\n".join(each.delivery_id for each in messages).encode())
        headers = {
            **self._options.headers,
            "Content-Type": "application/json",
            "User-Agent": f"tailrace/{__version__}",
            "Idempotency-Key": digest.hexdigest()[:32],
        }
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, body, int(time.time()))
        return headers

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = Connection(self._host, self._port, self._tls, self._options.timeout_s)
            self._local.connection = connection
            self._connections.append(connection)
        return connection


def _address(url: str) -> SplitResult:
    """What it names; raises ConfigError, which does not show it."""
    try:
        address = urlsplit(url)
        is_one = address.scheme in {"http", "https"} and address.hostname and address.port != 0
        # As the resolver wants it.
        (address.hostname or "").encode("idna")
    except ValueError:
        is_one = False
    if not is_one or not _URL.fullmatch(url):
        raise ConfigError("url of a webhook sink is not an address", hint="write https://host/path")
    if address.username is not None:
        raise ConfigError(
            "url of a webhook sink has a user in it, whom nobody would be told of",
            hint='write headers: {Authorization: "${NAME}"}',
        )
    return address


def _hidden(options: WebhookOptions, address: SplitResult) -> list[str]:
    """What a receiver may repeat and nobody is shown, the longest first."""
    words = {options.url, address.path, address.query, address.hostname or "", options.secret}
    words |= {value for _, value in parse_qsl(address.query)}
    for value in options.headers.values():
        # Of `Bearer x` the last word is the secret.
        words |= {value, value.rpartition(" ")[2]}
    words |= set(map(unquote, words))
    return sorted((each for each in words if len(each) >= _HIDDEN_CHARS), key=len, reverse=True)


def _headers(given: object) -> dict[str, str]:
    """Names and values; raises ConfigError, which shows no value."""
    if not isinstance(given, Mapping):
        raise ConfigError("headers of a webhook sink must be names and values")
    headers = {str(name): _revealed(value) for name, value in given.items()}
    for name, value in headers.items():
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise ConfigError(
                f"header {name!r} of a webhook sink cannot be sent",
                hint="does its value have a line end, or characters beyond Latin-1?",
            )
    return headers


def signature(secret: bytes, body: bytes, at_s: int) -> str:
    """`t=<seconds since 1970>,v1=<HMAC-SHA256 of "<t>." and the body>`."""
    mac = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def _wait_s(retry_after: str | None) -> float:
    """Only as a number of seconds, and no longer than a minute."""
    return min(float(retry_after), 60.0) if retry_after and retry_after.isdecimal() else 0.0


def _revealed(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value or "")
