"""Messages straight from a socket: whole, in order, none lost, however they are cut on the way."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SegmentCorrupt, SourceError
from tailrace.postgres.messages import Messages
from tailrace.postgres.wire import PlainWire

COPY_BOTH = b"W" + struct.pack(">IBH", 7, 0, 0)
NOTICE = b"N" + struct.pack(">I", 4 + 12) + b"SNOTICE\0Mx\0\0"
READ_BYTES = 4096


def packed(*payloads: bytes) -> bytes:
    """As the server sends them."""
    return b"".join(b"d" + struct.pack(">I", 4 + len(payload)) + payload for payload in payloads)


def error(code: str) -> bytes:
    fields = b"SFATAL\0VFATAL\0C" + code.encode() + b"\0Mgone for good\0\0"
    return b"E" + struct.pack(">I", 4 + len(fields)) + fields


def each(messages: Messages) -> list[bytes]:
    return [messages.message(place) for place in range(len(messages))]


class Ends:
    """Both ends of a connection that streams."""

    def __init__(self) -> None:
        self.server, self._client = socket.socketpair()
        self.server.sendall(COPY_BOTH)
        wire = PlainWire.begin(self._client.fileno())
        assert wire is not None
        self.wire = wire

    def read(self, bytes_max: int = READ_BYTES) -> list[bytes]:
        """All that is here."""
        found, is_all = [], False
        while not is_all:
            is_all = self.wire.receive(bytes_max)
            found += each(self.wire.take())
        return found

    def close(self) -> None:
        for end in (self.server, self._client, self.wire):
            end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


# What Postgres sends begins with one of two letters, and may hold what looks like a beginning.
PAYLOADS = st.builds(
    lambda pieces: b"".join(pieces),
    st.tuples(
        st.sampled_from([b"w", b"k", b"x"]),
        st.binary(max_size=300),
        st.sampled_from([b"", b"d", b"d\0", packed(b"w"), packed(b"k" * 17)[:9]]),
        st.binary(max_size=9),
    ),
)


@given(
    st.lists(PAYLOADS, max_size=20),
    st.lists(st.integers(1, 400), min_size=1),
    st.integers(10, 500),
)
def test_messages_arrive_whole_and_in_order_however_they_are_cut(
    payloads: list[bytes], cuts: list[int], bytes_max: int
) -> None:
    ends = Ends()
    try:
        sent, found, turn = packed(*payloads), [], 0
        while sent:
            size = cuts[turn % len(cuts)]
            ends.server.sendall(sent[:size])
            sent, turn = sent[size:], turn + 1
            found += ends.read(bytes_max)
        assert found == payloads
    finally:
        ends.close()


def test_a_message_longer_than_the_limit_is_read_whole_and_its_room_given_back(ends: Ends) -> None:
    ends.server.sendall(packed(b"a" * 50_000, b"b"))
    assert ends.read(1000) == [b"a" * 50_000, b"b"]
    ends.server.sendall(packed(b"c"))
    ends.wire.receive(1000)
    assert ends.wire.take().data.nbytes == 1000


def test_what_was_not_taken_is_pending(ends: Ends) -> None:
    ends.server.sendall(packed(b"whole") + b"d\0")
    ends.wire.receive(READ_BYTES)
    assert ends.wire.pending_bytes == 12
    assert each(ends.wire.take()) == [b"whole"]
    assert ends.wire.pending_bytes == 2


def test_reading_stops_at_the_limit_and_says_that_there_is_more(ends: Ends) -> None:
    ends.server.sendall(packed(*[b"x" * 95] * 10))
    assert not ends.wire.receive(200)
    assert len(ends.wire.take()) == 2


def test_a_notice_between_messages_is_passed_over(ends: Ends) -> None:
    ends.server.sendall(packed(b"a") + NOTICE + packed(b"b") + NOTICE + packed(b"c"))
    assert ends.read() == [b"a", b"b", b"c"]


def test_messages_before_an_error_are_handed_over_and_its_sql_state_is_kept(ends: Ends) -> None:
    ends.server.sendall(packed(b"a", b"b") + error("57P01"))
    assert ends.read() == [b"a", b"b"]
    with pytest.raises(psycopg.errors.AdminShutdown, match="gone for good"):
        ends.wire.receive(READ_BYTES)


def test_an_error_of_an_unknown_state_is_an_error(ends: Ends) -> None:
    ends.server.sendall(error("ZZ999"))
    assert ends.read() == []
    with pytest.raises(psycopg.Error, match="gone for good"):
        ends.wire.receive(READ_BYTES)


def test_the_end_of_the_stream_can_be_tried_again(ends: Ends) -> None:
    ends.server.sendall(packed(b"a") + b"c" + struct.pack(">I", 4))
    assert ends.read() == [b"a"]
    with pytest.raises(SourceError, match="ended the stream") as caught:
        ends.wire.receive(READ_BYTES)
    assert caught.value.retry


def test_f086_a_cut_in_the_middle_of_a_message_gives_up_the_rest(ends: Ends) -> None:
    ends.server.sendall(packed(b"a", b"b")[:-1])
    ends.server.close()
    assert ends.read() == [b"a"]
    ends.wire.receive(READ_BYTES)
    with pytest.raises(SourceError, match="closed the connection") as caught:
        ends.wire.receive(READ_BYTES)
    assert caught.value.retry


def test_f086_a_size_that_cannot_be_is_not_waited_for(ends: Ends) -> None:
    ends.server.sendall(packed(b"a") + b"d\xff\xff\xff\xff")
    assert ends.read() == [b"a"]
    with pytest.raises(SourceError, match="cannot be read"):
        ends.wire.receive(READ_BYTES)


def test_f086_an_empty_message_is_damage(ends: Ends) -> None:
    ends.server.sendall(packed(b""))
    ends.wire.receive(READ_BYTES)
    with pytest.raises(SegmentCorrupt):
        assert ends.wire.take().tags


def test_sending_never_waits_and_nothing_of_it_is_lost(ends: Ends) -> None:
    payloads = [bytes([number % 256]) * 1000 for number in range(1000)]
    for payload in payloads:
        ends.wire.send(payload)
    got = b""
    ends.server.setblocking(False)
    wanted = packed(*payloads, b"last")
    ends.wire.send(b"last")
    while len(got) < len(wanted):
        try:
            got += ends.server.recv(1 << 20)
        except BlockingIOError:
            ends.wire.send(b"")
            wanted += packed(b"")
    assert got == wanted[: len(got)]


@pytest.mark.parametrize("answer", [error("55006"), NOTICE + COPY_BOTH, COPY_BOTH[:5], b""])
def test_any_other_answer_is_left_for_libpq(answer: bytes) -> None:
    server, client = socket.socketpair()
    with server, client:
        server.sendall(answer)
        assert PlainWire.begin(client.fileno()) is None
        client.setblocking(False)
        assert not answer or client.recv(1000) == answer


def test_a_unix_socket_is_shallow_and_a_tcp_connection_is_not() -> None:
    """Half a socket full of rows is read at once: of the one some hundred, of the other more."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as over_tcp,
    ):
        near, far = socket.socketpair()
        with near, far:
            assert PlainWire(near).is_shallow
            assert not PlainWire(over_tcp).is_shallow
