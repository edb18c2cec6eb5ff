"""Stores that hang or are full, servers that stop or crash, clocks that jump: what was committed
reaches the log, and Postgres is never held hostage.
"""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import psycopg
import pytest

from tailrace.capture.daemon import LEFT_BEHIND_MAX
from tailrace.errors import ConfigError, SlotLost, SourceError
from tailrace.exposition import serve
from tailrace.log import layout
from tailrace.log.merge import MergePolicy
from tailrace.postgres.server import wal_position
from tailrace.storage import FileStore, Store
from tailrace.storage.disk import Disk
from tests.capture.hybrid.test_handover import modes
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import (
    FAST,
    NAMES,
    Running,
    confirmed,
    hybrid,
    settings,
    wait_acknowledged,
    wait_caught_up,
    wait_until,
)
from tests.log.faulty_store import WatchedStore
from tests.postgres.walsender import streaming
from tests.server import Database, Server, ServerFactory


class Gate:
    """Holds up the puts of a store while it is shut."""

    def __init__(self, store: Store) -> None:
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()
        self.store = WatchedStore(store, before=self._before)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def _before(self, what: str, key: str) -> None:
        if what == "put" and not self._open.is_set():
            self.held.set()
            assert self._open.wait(120)


@pytest.fixture
def gate(store: FileStore) -> Iterator[Gate]:
    made = Gate(store)
    yield made
    made.open()


@pytest.fixture
def private(postgres_server: ServerFactory) -> Iterator[Server]:
    """A server that a test may stop."""
    server = postgres_server()
    with server.connect() as connection:
        connection.execute("CREATE TABLE public.t (id bigint PRIMARY KEY, v text)")
    yield server


def test_f085_status_goes_on_while_the_store_is_slow_and_the_connection_stays(
    database: Database, source: psycopg.Connection, gate: Gate, store: FileStore
) -> None:
    limits = replace(FAST, status_interval_s=0.3, pending_bytes_max=1 << 20)
    capture = Running(settings(database.dsn, limits=limits, sender_timeout_s=1), gate.store)
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (0, 'a')")
        wait_caught_up(capture, source)
        gate.shut()
        # More than is taken in while the store hangs, so that reading pauses as well.
        source.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 8000) g")
        assert gate.held.wait(60)
        before = _reply_time(source)
        # Three times the server's timeout: it hears from us all the while.
        wait_until(lambda: _reply_time(source) > before + 3)
        assert capture.value("reconnects_total") == 0
        gate.open()
        wait_acknowledged(capture, source)
        assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


def _reply_time(connection: psycopg.Connection) -> float:
    query = "SELECT extract(epoch FROM reply_time)::float FROM pg_stat_replication"
    row = connection.execute(query).fetchone()
    assert row is not None, "the connection is gone"
    return float(row[0])


def test_f087_postgres_stops_promptly_while_we_stream(private: Server, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "log")
    capture = Running(settings(private.dsn), store)
    with capture:
        capture.wait_for_stream()
        with private.connect() as connection:
            connection.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 5000) g")
        private.stop("fast", timeout_s=20)
        private.start()
        with private.connect() as connection:
            connection.execute("INSERT INTO t VALUES (0, 'after')")
            wait_caught_up(capture, connection)
    with private.connect() as connection:
        assert_equal(store, connection, "public.t")


def test_f087_postgres_stops_though_our_store_is_stalled(
    private: Server, gate: Gate, store: FileStore
) -> None:
    limits = replace(FAST, stall_timeout_s=2.0)
    capture = Running(settings(private.dsn, limits=limits), gate.store)
    with capture:
        capture.wait_for_stream()
        gate.shut()
        with private.connect() as connection:
            connection.execute("INSERT INTO t VALUES (1, 'a')")
        assert gate.held.wait(60)
        private.stop("fast", timeout_s=20)
        gate.open()
        private.start()
        with private.connect() as connection:
            connection.execute("INSERT INTO t VALUES (2, 'after')")
            wait_caught_up(capture, connection)
    with private.connect() as connection:
        assert_equal(store, connection, "public.t")


def test_f008_an_immediate_restart_of_postgres_neither_loses_nor_doubles(
    private: Server, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "log")
    capture = Running(settings(private.dsn), store)
    with capture:
        capture.wait_for_stream()
        for round_number in range(3):
            with private.connect() as connection:
                for number in range(30):
                    connection.execute(
                        "INSERT INTO t VALUES (%s, 'x')", [round_number * 100 + number]
                    )
                connection.execute("DELETE FROM t WHERE id % 7 = 0")
                if round_number == 1:
                    wait_acknowledged(capture, connection)
            private.restart(immediate=True)
        with private.connect() as connection:
            connection.execute("INSERT INTO t VALUES (-1, 'last')")
            wait_caught_up(capture, connection)
            assert_equal(store, connection, "public.t")


class FullDisk:
    """The `os` module, with a disk that can fill up."""

    def __init__(self) -> None:
        self.is_full = False
        self.refusal_count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, handle: int, data: bytes | memoryview, /) -> int:
        if self.is_full:
            self.refusal_count += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, data)

    def has_refused(self, count: int) -> bool:
        return self.refusal_count >= count


def test_f088_a_full_disk_stops_acknowledgement_and_capture_goes_on_when_there_is_space(
    database: Database, source: psycopg.Connection, tmp_path: Path
) -> None:
    disk = FullDisk()
    # All that it does not say itself is said by `os`, which is a disk.
    store = FileStore(tmp_path / "log", disk=cast(Disk, disk))
    capture = Running(settings(database.dsn), store)
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (0, 'fits')")
        wait_caught_up(capture, source)
        disk.is_full = True
        before = wal_position(source)
        source.execute("INSERT INTO t SELECT g, 'does not' FROM generate_series(1, 100) g")
        capture.wait_until(lambda: disk.refusal_count >= 3)
        assert confirmed(source) <= before
        # Whoever watches the server's disk sees what this costs it.
        source.execute("SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000))")
        capture.wait_until(lambda: capture.value("retained_wal_bytes") > 1_000_000)
        disk.is_full = False
        wait_acknowledged(capture, source)
    assert_equal(store, source, "public.t")


def test_f088_a_full_disk_is_said_once_and_drains_go_on_when_there_is_space(
    database: Database,
    source: psycopg.Connection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FullDisk()
    store = FileStore(tmp_path / "log", disk=cast(Disk, disk))
    with Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        source.execute("INSERT INTO t VALUES (0, 'fits')")
        capture.wait_until(lambda: len(list(read_changes(store))) == 1)
        disk.is_full = True
        # Nobody who writes the table has to know.
        for number in range(1, 4):
            source.execute("INSERT INTO t VALUES (%s, 'does not')", [number])
            refused = disk.refusal_count + 1
            capture.wait_until(partial(disk.has_refused, refused))
        disk.is_full = False
        capture.wait_until(lambda: len(list(read_changes(store))) == 4)
    (line,) = (each for each in caplog.messages if each.startswith("capture interrupted"))
    assert "no space left" in line and "free some space; what runs then goes on" in line
    assert_equal(store, source, "public.t")


def test_f094_a_wall_clock_that_jumps_changes_nothing(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, real_ns = time.time, time.time_ns
    jump_s = [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jump_s[0])
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(jump_s[0] * 1e9))
    capture = Running(settings(database.dsn), store)
    with capture:
        capture.wait_for_stream()
        for number, jump in enumerate([3600, -3600, 86_400 * 365, -86_400 * 365]):
            jump_s[0] = float(jump)
            source.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            wait_acknowledged(capture, source)
        assert capture.value("reconnects_total") == 0
        assert capture.value("lag_seconds") >= 0
    assert_equal(store, source, "public.t")


def test_f033_a_slot_in_use_elsewhere_is_waited_for(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Running(settings(database.dsn), store) as first:
        first.wait_for_stream()
    # The server takes a moment to see that a session has ended.
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: source.execute(query, [NAMES.slot]).fetchone() == (False,))
    with streaming(database.dsn, NAMES.slot, application_name="somebody"):
        capture = Running(first.told, store)
        capture.__enter__()
        wait_until(lambda: "slot is in use" in caplog.text)
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def test_f033_a_slot_that_stays_in_use_is_told_with_its_holder(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Running(settings(database.dsn), store) as first:
        first.wait_for_stream()
    monkeypatch.setattr("tailrace.capture.leader.JOIN_TIMEOUT_S", 0.0)
    told = replace(first.told, sender_timeout_s=1)
    with streaming(database.dsn, NAMES.slot, application_name="somebody") as holder:
        with Running(told, store) as capture:
            error = capture.fails_with(SourceError)
        assert f"in use by pid {holder.backend_pid}" in str(error)


def test_f027_a_slot_that_is_lost_while_we_stream_ends_capture(
    postgres_server: ServerFactory, gate: Gate
) -> None:
    server = postgres_server(
        {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    )
    with server.connect() as connection:
        connection.execute("CREATE TABLE public.t (id bigint PRIMARY KEY, v text)")
        capture = Running(settings(server.dsn), gate.store)
        with capture:
            capture.wait_for_stream()
            gate.shut()
            connection.execute("INSERT INTO t VALUES (1, 'a')")
            assert gate.held.wait(60)
            for _ in range(4):
                connection.execute("SELECT pg_logical_emit_message(false, 'x', 'x')")
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            gate.open()
            capture.fails_with(SlotLost)


def test_a_session_that_is_terminated_is_made_again(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    capture = Running(settings(database.dsn), store)
    with capture:
        for number in range(3):
            capture.wait_for_stream()
            source.execute("INSERT INTO t VALUES (%s, 'a')", [number])
            source.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = 'tailrace'"
            )
            _wait_for_reconnect(capture, number + 1)
            wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def _wait_for_reconnect(capture: Running, count: float) -> None:
    capture.wait_until(lambda: capture.value("reconnects_total") >= count)


def test_reconnecting_leaks_neither_threads_nor_files(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    capture = Running(settings(database.dsn), store)

    def reconnect(times: int) -> None:
        for _ in range(times):
            before = capture.value("reconnects_total")
            source.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
            )
            _wait_for_reconnect(capture, before + 1)
            wait_until(lambda: _is_active(source))

    def held() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before_all = held()
    with capture:
        capture.wait_for_stream()
        reconnect(1)
        wait_until(lambda: held()[0] <= before_all[0] + 3)
        threads, files = held()
        # Not everything that a connection brings need be open again at the moment of a look; but
        # what each one leaves behind would be more than that.
        reconnect(6)
        wait_until(lambda: held()[0] < threads + 6 and held()[1] < files + 6)
    wait_until(lambda: held() <= before_all)


def _is_active(connection: psycopg.Connection) -> bool:
    row = connection.execute("SELECT active FROM pg_replication_slots").fetchone()
    return row == (True,)


def test_a_store_that_hangs_for_good_is_not_given_thread_after_thread(
    database: Database, source: psycopg.Connection, gate: Gate, store: FileStore
) -> None:
    limits = replace(FAST, stall_timeout_s=0.2)
    capture = Running(settings(database.dsn, limits=limits), gate.store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace.capture.leader.JOIN_TIMEOUT_S", 0.05)
        with capture:
            capture.wait_for_stream()
            gate.shut()
            source.execute("INSERT INTO t VALUES (1, 'a')")
            _wait_for_reconnect(capture, LEFT_BEHIND_MAX + 1)
            writers = [each for each in threading.enumerate() if each.name == "tailrace-writer"]
            assert len(writers) <= LEFT_BEHIND_MAX
            gate.open()
            wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def test_merging_goes_on_beside_the_stream(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.capture.housekeeping.LOG_INTERVAL_S", 0.1)
    policy = MergePolicy(segment_count_min=5, grace_s=0)
    capture = Running(settings(database.dsn, merge=policy), store)
    with capture:
        capture.wait_for_stream()
        for number in range(10):
            source.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            wait_caught_up(capture, source)
        capture.wait_until(lambda: store.list(layout.MERGED))
        source.execute("DELETE FROM t WHERE id % 2 = 0")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


METRICS = (
    "leader",
    "received_lsn",
    "durable_lsn",
    "acknowledged_lsn",
    "lag_bytes",
    "lag_seconds",
    "retained_wal_bytes",
    "last_keepalive_seconds",
    "segments_total",
    "segment_bytes_total",
    "changes_total",
    "reconnects_total",
)


def test_prometheus_is_shown_the_documented_names(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    capture = Running(settings(database.dsn), store)
    port = serve(capture.metrics.registry, 0, setting="a.metrics_port")
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as raised:
        serve(capture.metrics.registry, port, setting="a.metrics_port")
    assert "a.metrics_port" in raised.value.hint
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        wait_acknowledged(capture, source)
        capture.wait_until(lambda: capture.value("retained_wal_bytes") > 0)
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            shown = answer.read().decode()
        assert capture.value("leader") == 1
    assert [name for name in METRICS if f'capture_{name}{{source="main"}}' not in shown] == []
    assert 'tailrace_capture_changes_total{source="main"} 2.0' in shown
    assert capture.value("leader") == 0
