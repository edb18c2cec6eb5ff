"""The replication session: one lock, one stream, one fate; and no call that waits for ever."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import SourceError
from tailrace.model import Lsn
from tailrace.postgres import replication
from tailrace.postgres.messages import Messages
from tailrace.postgres.replication import ReplicationConnection, lock_key
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import create_slot, read_slot
from tests.capture.running import wait_until
from tests.proxy import Proxy
from tests.server import Database

SLOT = "tailrace_main"
PUBLICATION = 'tailrace "odd", name'


@pytest.fixture
def start(capture: Connection, app: Connection, admin: Connection) -> Lsn:
    """A slot and a publication of one table; where the slot starts."""
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    admin.execute('CREATE PUBLICATION "tailrace ""odd"", name" FOR TABLE app.t')
    return create_slot(capture, SLOT, lock_timeout_ms=5000)


@pytest.fixture
def stream(capture_dsn: str, start: Lsn) -> Iterator[ReplicationConnection]:
    """A session that streams."""
    connection = ReplicationConnection(capture_dsn)
    assert connection.try_lock(SLOT)
    connection.start(SLOT, [PUBLICATION], start)
    yield connection
    connection.close()


def each(messages: Messages) -> list[bytes]:
    return [messages.message(place) for place in range(len(messages))]


def read_until(connection: ReplicationConnection, tag: bytes) -> list[bytes]:
    """Read until a frame of this tag has come."""
    messages: list[bytes] = []
    deadline = time.monotonic() + 30
    while not any(message[25:26] == tag for message in messages):
        assert time.monotonic() < deadline
        select.select([connection.fileno()], [], [], 1)
        connection.wire.receive(1 << 20)
        messages += each(connection.wire.take())
    return messages


def test_the_lock_is_for_one_session_and_free_when_it_ends(capture_dsn: str) -> None:
    first, second = ReplicationConnection(capture_dsn), ReplicationConnection(capture_dsn)
    try:
        assert first.try_lock(SLOT)
        assert not second.try_lock(SLOT)
        assert second.try_lock("tailrace_other")
        first.close()
        deadline = time.monotonic() + 30
        while not second.try_lock(SLOT):
            assert time.monotonic() < deadline
    finally:
        first.close()
        second.close()


def test_the_lock_of_a_slot_is_a_number_that_never_changes() -> None:
    assert lock_key(SLOT) == -7493328731845274299
    assert lock_key("tailrace_other") != lock_key(SLOT)


def test_the_lock_is_held_while_streaming(stream: ReplicationConnection, capture_dsn: str) -> None:
    other = ReplicationConnection(capture_dsn)
    try:
        assert not other.try_lock(SLOT)
    finally:
        other.close()


def test_what_is_committed_is_read(stream: ReplicationConnection, app: Connection) -> None:
    app.execute("INSERT INTO t VALUES (1), (2)")
    frames = [message[25:26] for message in read_until(stream, b"C") if message[:1] == b"w"]
    assert b"".join(frames) == b"BRIIC"


def test_reading_ends_near_its_limit_and_goes_on_after_it(
    stream: ReplicationConnection, app: Connection
) -> None:
    app.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    tags = b""
    has_more = False
    while b"C" not in tags:
        select.select([stream.fileno()], [], [], 0 if has_more else 1)
        has_more = not stream.wire.receive(1000)
        messages = each(stream.wire.take())
        assert sum(map(len, messages)) < 1200
        tags += b"".join(bytes(message[25:26]) for message in messages)
    assert tags.count(b"I") == 1000


def test_f002_the_slot_moves_to_what_is_told_and_no_further(
    stream: ReplicationConnection, admin: Connection, app: Connection, start: Lsn
) -> None:
    app.execute("INSERT INTO t VALUES (1)")
    read_until(stream, b"C")
    end = wal_position(admin)
    stream.send_status(end, start, request_reply=True, unix_time_us=time.time_ns() // 1000)
    _wait_for_keepalive(stream)
    assert _confirmed(admin) == start
    stream.send_status(end, end, request_reply=True, unix_time_us=time.time_ns() // 1000)
    # The next keepalive may have been on its way already.
    wait_until(lambda: _confirmed(admin) != start)
    assert _confirmed(admin) == end


def _wait_for_keepalive(stream: ReplicationConnection) -> None:
    deadline = time.monotonic() + 30
    tags = b""
    while b"k" not in tags:
        assert time.monotonic() < deadline
        select.select([stream.fileno()], [], [], 1)
        stream.wire.receive(1 << 20)
        tags = bytes(stream.wire.take().tags)


def _confirmed(conn: Connection) -> Lsn | None:
    state = read_slot(conn, SLOT)
    return None if state is None else state.confirmed_flush_lsn


def test_the_sql_state_survives_though_messages_came_before_the_end(
    stream: ReplicationConnection, app: Connection, admin: Connection
) -> None:
    app.execute("INSERT INTO t SELECT generate_series(1, 100)")
    admin.execute('DROP PUBLICATION "tailrace ""odd"", name"')
    state = read_slot(admin, SLOT)
    assert state is not None
    admin.execute("SELECT pg_terminate_backend(%s, 5000)", (state.active_pid,))
    with pytest.raises((psycopg.Error, SourceError)) as caught:
        for _ in range(1000):
            stream.wire.receive(1 << 20)
            stream.wire.take()
    assert "no COPY in progress" not in str(caught.value)


def test_f033_a_slot_in_use_is_refused_by_its_sql_state_and_can_be_tried_again(
    stream: ReplicationConnection, capture_dsn: str, start: Lsn
) -> None:
    second = ReplicationConnection(capture_dsn)
    try:
        for _ in range(2):
            with pytest.raises(psycopg.errors.ObjectInUse):
                second.start(SLOT, [PUBLICATION], start)
        stream.close()
        deadline = time.monotonic() + 30
        while True:
            try:
                second.start(SLOT, [PUBLICATION], start)
                break
            except psycopg.errors.ObjectInUse:
                assert time.monotonic() < deadline
    finally:
        second.close()


def test_a_session_that_idles_before_it_streams_loses_the_lock(capture_dsn: str) -> None:
    stopped = ReplicationConnection(capture_dsn, sender_timeout_s=1)
    other = ReplicationConnection(capture_dsn)
    try:
        assert stopped.try_lock(SLOT)
        deadline = time.monotonic() + 30
        while not other.try_lock(SLOT):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(SourceError) as caught:
            stopped.ping()
        assert caught.value.retry
    finally:
        stopped.close()
        other.close()


def test_a_server_that_does_not_answer_is_given_up(
    source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "ANSWER_TIMEOUT_S", 0.3)
    port = int(conninfo_to_dict(source.tcp_dsn)["port"] or 0)
    with Proxy(port) as proxy:
        dsn = make_conninfo(
            source.tcp_dsn, port=proxy.port, sslmode="disable", gssencmode="disable"
        )
        connection = ReplicationConnection(dsn)
        try:
            connection.ping()
            proxy.faults.frozen = True
            with pytest.raises(SourceError, match="does not answer") as caught:
                connection.ping()
            assert caught.value.retry
        finally:
            proxy.faults.frozen = False
            connection.close()


def test_connecting_to_a_silent_host_holds_up_no_other_thread() -> None:
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.wait(0.01):
            counted += 1

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        thread = threading.Thread(target=count)
        thread.start()
        try:
            with pytest.raises(SourceError, match="no answer") as caught:
                ReplicationConnection(f"host=127.0.0.1 port={port} dbname=x connect_timeout=2")
            assert caught.value.retry
        finally:
            stop.set()
            thread.join()
    assert counted > 20


def test_f034_f035_a_role_that_may_not_replicate_is_told_so(
    source: Database, admin: Connection
) -> None:
    admin.execute("CREATE ROLE plain LOGIN")
    with pytest.raises(SourceError, match="may not replicate") as caught:
        ReplicationConnection(make_conninfo(source.dsn, user="plain"))
    assert "REPLICATION" in caught.value.hint
