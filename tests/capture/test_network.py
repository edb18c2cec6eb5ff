"""Networks that delay, slice, cut, freeze and corrupt: capture reconnects, and the log is right."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import SourceError
from tailrace.postgres.session import connect
from tailrace.storage import FileStore
from tests.capture.oracle import assert_equal
from tests.capture.running import FAST, Running, settings, wait_caught_up
from tests.proxy import Proxy, TlsProxy
from tests.server import Database


def port_of(database: Database) -> int:
    return int(conninfo_to_dict(database.tcp_dsn)["port"] or 0)


def through(database: Database, port: int, sslmode: str = "disable") -> str:
    return make_conninfo(
        database.tcp_dsn, port=port, sslmode=sslmode, gssencmode="disable", connect_timeout="5"
    )


@contextmanager
def writing(database: Database) -> Iterator[None]:
    """A session that commits small and large transactions for as long as this lasts."""
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            for number in itertools.count():
                if stop.is_set():
                    return
                size = 500 if number % 10 == 0 else 3
                connection.execute(
                    "INSERT INTO t SELECT %s * 1000 + g, repeat('x', 50) "
                    "FROM generate_series(1, %s::int) g",
                    [number, size],
                )
                connection.execute("DELETE FROM t WHERE id %% 7 = %s", [number % 7])
                stop.wait(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_f086_a_connection_that_is_cut_in_the_middle_of_a_message_costs_nothing(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    random = Random(86)
    with Proxy(port_of(database)) as proxy:
        capture = Running(settings(through(database, proxy.port)), store)
        with capture:
            capture.wait_for_stream()
            with writing(database):
                # Also the sessions that only ask the catalog are cut, at any byte.
                proxy.faults.cut_after = [random.randrange(1, 30_000) for _ in range(8)]
                proxy.cut()
                capture.wait_until(lambda: not proxy.faults.cut_after)
            wait_caught_up(capture, source)
            assert capture.value("reconnects_total") >= 1
    assert_equal(store, source, "public.t")


def test_f086_a_connection_that_gives_one_byte_at_a_time_is_read_right(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Proxy(port_of(database)) as proxy:
        capture = Running(settings(through(database, proxy.port)), store)
        with capture:
            capture.wait_for_stream()
            proxy.faults.slice_bytes = 1
            source.execute("INSERT INTO t SELECT g, 'slow' FROM generate_series(1, 100) g")
            source.execute("DELETE FROM t WHERE id % 2 = 0")
            wait_caught_up(capture, source)
            assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


def test_f086_latency_costs_time_and_nothing_else(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Proxy(port_of(database)) as proxy:
        capture = Running(settings(through(database, proxy.port)), store)
        with capture:
            capture.wait_for_stream()
            proxy.faults.latency_s = 0.2
            for number in range(20):
                source.execute("INSERT INTO t VALUES (%s, 'far away')", [number])
            wait_caught_up(capture, source)
            assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


def test_f086_a_connection_that_freezes_is_given_up(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    limits = replace(FAST, receive_timeout_s=2.0)
    with Proxy(port_of(database)) as proxy:
        capture = Running(settings(through(database, proxy.port), limits=limits), store)
        with capture:
            capture.wait_for_stream()
            proxy.faults.frozen = True
            source.execute("INSERT INTO t VALUES (1, 'while frozen')")
            capture.wait_until(lambda: capture.value("reconnects_total") >= 1)
            proxy.faults.frozen = False
            wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


@pytest.mark.parametrize("seed", range(2))
def test_f086_bytes_that_are_corrupted_on_the_way_are_found_by_tls(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    tmp_path: Path,
    seed: int,
) -> None:
    random = Random(seed)
    with TlsProxy(port_of(database), tmp_path) as tls, Proxy(tls.port) as proxy:
        dsn = through(database, proxy.port, sslmode="require")
        capture = Running(settings(dsn), store)
        with capture:
            capture.wait_for_stream()
            with writing(database):
                proxy.faults.corrupt_after = [random.randrange(1500, 20_000) for _ in range(6)]
                proxy.cut()
                capture.wait_until(lambda: not proxy.faults.corrupt_after)
            wait_caught_up(capture, source)
            assert capture.value("reconnects_total") >= 1
    assert_equal(store, source, "public.t")


def test_f120_the_certificate_of_the_server_is_verified_in_full(
    database: Database, source: psycopg.Connection, store: FileStore, tmp_path: Path
) -> None:
    with TlsProxy(port_of(database), tmp_path) as tls:
        trusted = make_conninfo(
            through(database, tls.port, sslmode="verify-full"), sslrootcert=str(tls.certificate)
        )
        with Running(settings(trusted), store) as capture:
            capture.wait_for_stream()
            source.execute("INSERT INTO t VALUES (1, 'encrypted')")
            wait_caught_up(capture, source)
        other_name = make_conninfo(trusted, host="localhost", hostaddr="127.0.0.1")
        unknown = make_conninfo(trusted, sslrootcert=str(Path(tmp_path, "none.pem")))
        for dsn in (other_name, unknown):
            with pytest.raises(SourceError, match="do not agree on TLS") as caught:
                connect(dsn)
            assert not caught.value.retry and "sslrootcert" in caught.value.hint
    assert_equal(store, source, "public.t")
