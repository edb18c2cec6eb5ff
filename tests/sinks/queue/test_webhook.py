"""What a receiver of a webhook may rely on."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from tailrace.errors import ConfigError
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.message import Message, place_of
from tailrace.sinks.queue.webhook import SIGNATURE, WebhookOptions, WebhookSender
from tests.proxy import self_signed
from tests.sinks.queue.servers import SECRET, WebhookQueue


def some(count: int = 2) -> list[Message]:
    return [
        Message(f"e{at}", place_of(1, at, 0, 1), "t", f"lane{at}", f"{at}", b'{"after":{"id":1}}')
        for at in range(count)
    ]


def send(receiver: WebhookQueue, messages: Sequence[Message]) -> None:
    sender = receiver.sender()
    assert sender.send(messages) == [None] * len(messages)
    sender.close()


def test_request_is_signed_over_its_time_and_body(receiver: WebhookQueue) -> None:
    send(receiver, some())
    headers, body = receiver.headers[0], receiver.bodies[0]
    stamp, mac = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
    signed = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
    assert hmac.compare_digest(mac, signed.hexdigest())
    assert abs(int(stamp) - time.time()) < 120
    assert headers["Content-Type"] == "application/json" and headers["X-Tenant"] == "t1"


def test_idempotency_key_is_that_of_the_messages(receiver: WebhookQueue) -> None:
    for messages in (some(2), some(2), some(3)):
        send(receiver, messages)
    first, again, other = (headers["Idempotency-Key"] for headers in receiver.headers)
    assert first == again != other


def test_f096_what_a_replay_means_to_send_again_is_another_request(receiver: WebhookQueue) -> None:
    for messages in (some(), [replace(each, replay="r1") for each in some()]):
        send(receiver, messages)
    live, again = (headers["Idempotency-Key"] for headers in receiver.headers)
    assert live != again, "or a receiver that knows the live one would drop it"


def test_answer_holds_for_every_message_and_says_how_long_to_wait(receiver: WebhookQueue) -> None:
    receiver.faults.fail(1, Kind.RETRIABLE, times=1)
    receiver.asks_to_wait = True
    sender = receiver.sender()
    failures = sender.send(some())
    sender.close()
    found = [(failure.code, failure.wait_s) for failure in failures if failure is not None]
    assert found == [("HTTP 503", 2.0)] * 2


def test_receiver_that_hangs_up_or_is_not_there_has_not_answered(receiver: WebhookQueue) -> None:
    sender = receiver.sender()
    receiver.faults.is_down = True
    (hung_up, _) = sender.send(some())
    assert hung_up is not None and not hung_up.is_answered
    receiver.faults.clear()
    assert sender.send(some()) == [None, None], "the next request has a connection of its own"
    sender.close()
    gone = WebhookSender(WebhookOptions("http://127.0.0.1:1/", timeout_s=1.0))
    (refused, _) = gone.send(some())
    assert refused is not None and not refused.is_answered


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n"


@pytest.mark.parametrize(
    ("at_once", "trickled"),
    [(_HEAD + b"\r\n", b"x" * 400), (_HEAD, b"X-Slow: " + b"x" * 400)],
    ids=["body", "headers"],
)
@pytest.mark.parametrize("is_tls", [False, True])
def test_f097_answer_that_trickles_holds_nobody_beyond_the_timeout(
    at_once: bytes, trickled: bytes, is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with trickling(at_once, trickled, certificate if is_tls else None) as port:
        url = f"{'https' if is_tls else 'http'}://127.0.0.1:{port}/"
        sender = WebhookSender(WebhookOptions(url, timeout_s=0.5))
        (failure,) = sender.send(some(1))
        sender.close()
    assert failure is not None and not failure.is_answered and "timed out" in failure.message


@contextmanager
def trickling(at_once: bytes, trickled: bytes, certificate: Path | None) -> Iterator[int]:
    """A receiver that never stops for as long as a timeout, and takes far longer than one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_trickle, args=(listener, at_once, trickled, certificate))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def _trickle(
    listener: socket.socket, at_once: bytes, trickled: bytes, certificate: Path | None
) -> None:
    sock, _ = listener.accept()
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        sock = context.wrap_socket(sock, server_side=True)
    with sock, suppress(OSError):
        sock.recv(65_536)
        sock.sendall(at_once)
        for byte in trickled:
            time.sleep(0.02)
            sock.sendall(bytes([byte]))


_WAIT = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
_TAKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("first", [[_WAIT, _TAKEN], [_WAIT + _TAKEN]], ids=["apart", "at once"])
def test_f097_interim_answer_is_not_taken_for_the_answer(first: list[bytes]) -> None:
    with answering([first, [_BUSY], [_TAKEN]]) as port:
        sender = WebhookSender(WebhookOptions(f"http://127.0.0.1:{port}/"))
        answers = [sender.send(some(1))[0] for _ in range(3)]
        sender.close()
    assert [answer and answer.code for answer in answers] == [None, "HTTP 503", None]


@contextmanager
def answering(answers: list[list[bytes]]) -> Iterator[int]:
    """A receiver with one connection that answers requests with these, each in pieces."""

    def answer() -> None:
        sock, _ = listener.accept()
        with sock:
            for pieces in answers:
                received = b""
                while not received.endswith(b"]}"):
                    more = sock.recv(65_536)
                    if not more:
                        return
                    received += more
                for piece in pieces:
                    sock.sendall(piece)
                    time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


@pytest.mark.parametrize("hangs_up", [True, False], ids=["hangs up", "reads no further"])
@pytest.mark.parametrize(
    ("status", "code"), [(b"413 Too Large", "HTTP 413"), (b"200 OK", "no answer")]
)
def test_f098_refusal_in_the_middle_of_a_large_request_is_the_answer(
    status: bytes, code: str, *, hangs_up: bool
) -> None:
    answer = b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status
    large = replace(some(1)[0], payload=b'"' + bytes(8 << 20) + b'"')
    with interrupting(answer, hangs_up=hangs_up) as port:
        options = WebhookOptions(f"http://127.0.0.1:{port}/", timeout_s=1, batch_bytes=16 << 20)
        sender = WebhookSender(options)
        # The second one on a connection of its own.
        answers = [sender.send([large])[0] for _ in range(2)]
        sender.close()
    assert [answer and answer.code for answer in answers] == [code, code]


@contextmanager
def interrupting(answer: bytes, *, hangs_up: bool) -> Iterator[int]:
    """A receiver that answers two requests, each after the first bytes of it."""
    is_over = threading.Event()

    def interrupt() -> None:
        with ExitStack() as stack:
            for _ in range(2):
                sock = stack.enter_context(listener.accept()[0])
                sock.recv(1024)
                sock.sendall(answer)
                if hangs_up:
                    sock.close()
            is_over.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            is_over.set()
            thread.join()


def test_f120_answer_that_repeats_the_request_is_shown_without_its_secrets() -> None:
    said = b"Cannot POST /in/hid-den?token=hid%64en for Bearer hidden of hidden2 at 127.0.0.1"
    no = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    with answering([[no]]) as port:
        url = f"http://127.0.0.1:{port}/in/hid-den?token=hid%64en"
        headers = {"Authorization": "Bearer hidden"}
        sender = WebhookSender(WebhookOptions(url, secret="hidden2", headers=headers))
        (failure,) = sender.send(some(1))
        sender.close()
    assert failure is not None and failure.message == "Cannot POST …?… for … of … at …"


def test_f120_secrets_are_not_shown(receiver: WebhookQueue) -> None:
    options = WebhookOptions.parse(
        {"url": receiver.url, "secret": SECRET, "headers": {"Authorization": "Bearer abc"}}
    )
    assert not any(text in repr(options) for text in (SECRET, "Bearer", "hidden"))
    receiver.faults.fail(1, Kind.INFRASTRUCTURE)
    sender = WebhookSender(options)
    (failure, _) = sender.send(some())
    sender.close()
    assert failure is not None and "hidden" not in f"{failure} {failure.hint}"


_NO_ADDRESSES = ["", "ftp://host/", "https:///path", "not an address", "http://host:99999/"]
_NO_URLS = [
    "http://[::1/x",
    "http://ho st/",
    "https://host/ü",
    "https://ann:hidden@host/",
    "http://a..b/",
]


@pytest.mark.parametrize("url", [*_NO_ADDRESSES, *_NO_URLS])
def test_address_must_be_one_of_http(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WebhookSender(WebhookOptions.parse({"url": url}))
    assert "hidden" not in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("Authorization", "Bearer hidden\n"), ("A b", "hidden"), ("X-Name", "hidden \N{EURO SIGN}")],
)
def test_f120_header_that_cannot_be_sent_is_refused_without_its_value(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match="cannot be sent") as raised:
        WebhookOptions.parse({"url": "https://host/", "headers": {name: SecretStr(value)}})
    assert "hidden" not in f"{raised.value} {raised.value.hint}"
