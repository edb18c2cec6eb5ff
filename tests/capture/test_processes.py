"""Processes that are killed, stopped and woken again: one leads, nothing is lost or doubled."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import psycopg
import pytest

from tailrace.capture import Settings
from tailrace.log.merge import MergePolicy
from tailrace.storage import FileStore
from tests.capture.oracle import assert_equal
from tests.capture.running import (
    FAST,
    NAMES,
    ROOT,
    CaptureProcess,
    Running,
    is_published,
    process,
    settings,
    wait_caught_up,
    wait_until,
)
from tests.server import Database, ServerFactory

KILLS = int(os.environ.get("KILLS", "4"))
SMALL = replace(FAST, seal_bytes=8000, part_bytes=8000, pending_bytes_max=100_000)
"""So that a modest transaction already goes through parts."""

EAGER = MergePolicy(segment_count_min=3, grace_s=0)


OF_TRIGGERS = ("drain.", "handover.", "intake.", "mark.", "slot.", "upkeep.")
"""Steps that a table of which the WAL is there from the first takes not: see
test_handover_deaths.
"""


def failpoints() -> list[str]:
    """Every name in the code that writes the log."""
    names: set[str] = set()
    for layer in ("log", "capture"):
        for path in (ROOT / "src/tailrace" / layer).glob("*.py"):
            names.update(re.findall(r'failpoint\("([^"]+)"\)', path.read_text()))
    return sorted(name for name in names if not name.startswith(OF_TRIGGERS))


@pytest.fixture
def told(database: Database, source: psycopg.Connection) -> Settings:
    """Small limits and eager merging, so that everything happens soon."""
    return settings(database.dsn, limits=SMALL, merge=EAGER, sender_timeout_s=3)


class Traffic:
    """Writers that insert, update, delete, roll back and now and then do much at once."""

    def __init__(self, database: Database, seed: int) -> None:
        self._connection = database.connect()
        self._random = Random(seed)
        self._next = 0

    def write(self) -> None:
        """One transaction."""
        random, execute = self._random, self._connection.execute
        count = random.choice([1, 1, 1, 1, 2, 2, 5, 400])
        with self._connection.transaction():
            execute(
                "INSERT INTO t SELECT g, repeat('x', 20) FROM generate_series(%s, %s::int) g",
                [self._next, self._next + count - 1],
            )
            with self._connection.transaction(force_rollback=random.random() < 0.3):
                execute("UPDATE t SET v = 'changed' WHERE id %% 17 = %s", [random.randrange(17)])
            execute("DELETE FROM t WHERE id %% 5 = %s", [random.randrange(5)])
        self._next += count

    def disturb(self, what: str) -> None:
        """Do to a table what capture must act upon."""
        execute = self._connection.execute
        if not is_published(self._connection, "aside"):
            execute("CREATE TABLE IF NOT EXISTS aside (id int PRIMARY KEY)")
        elif what.startswith("removal."):
            execute("ALTER TABLE aside REPLICA IDENTITY NOTHING")
        elif what.startswith("mending."):
            execute("ALTER PUBLICATION tailrace_main DROP TABLE aside")
        elif what.startswith("watch."):
            execute("ALTER TABLE aside ADD IF NOT EXISTS c int DEFAULT 1")

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Write without pause, beside the test."""
        stop = threading.Event()

        def flow() -> None:
            while not stop.wait(0.02):
                self.write()

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def traffic(database: Database, source: psycopg.Connection) -> Iterator[Traffic]:
    made = Traffic(database, seed=1)
    yield made
    made.close()


@pytest.mark.parametrize("name", failpoints())
def test_f081_a_process_killed_at_any_step_is_continued_by_the_next(
    told: Settings,
    source: psycopg.Connection,
    store: FileStore,
    traffic: Traffic,
    tmp_path: Path,
    name: str,
) -> None:
    with process(told, store.url, tmp_path / "first", failpoint=name) as first:
        deadline = time.monotonic() + 60
        while first.is_running:
            assert time.monotonic() < deadline, f"{name} is never reached\n{first.said()}"
            if is_published(source, "t"):
                traffic.write()
                traffic.disturb(name)
            time.sleep(0.02)
        assert first.wait() == 137, first.said()
    with process(told, store.url, tmp_path / "second") as second:
        second.wait_published(source)
        for _ in range(5):
            traffic.write()
        second.wait_caught_up(source)
        assert second.terminate() == 0, second.said()
    assert_equal(store, source, "public.t")


def test_f081_capture_killed_again_and_again_under_load_loses_and_doubles_nothing(
    told: Settings,
    source: psycopg.Connection,
    store: FileStore,
    traffic: Traffic,
    tmp_path: Path,
) -> None:
    random = Random(81)
    with process(told, store.url, tmp_path / "said") as capture:
        capture.wait_published(source)
    with traffic.flowing():
        for _ in range(KILLS):
            with process(told, store.url, tmp_path / "said") as capture:
                before = capture.said().count("streaming slot")
                _wait_for_words(capture, "streaming slot", before + 1)
                time.sleep(random.uniform(0, 0.5))
    with process(told, store.url, tmp_path / "said") as capture:
        # The one before may have acknowledged everything: then there is nothing to catch up with.
        before = capture.said().count("streaming slot")
        _wait_for_words(capture, "streaming slot", before + 1)
        capture.wait_caught_up(source)
        assert capture.terminate() == 0, capture.said()
    assert_equal(store, source, "public.t")


def _wait_for_words(capture: CaptureProcess, words: str, count: int = 1) -> None:
    capture.wait_until(lambda: capture.said().count(words) >= count)


def test_f082_a_leader_that_is_stopped_loses_the_lead_and_does_no_harm_when_it_wakes(
    told: Settings,
    source: psycopg.Connection,
    store: FileStore,
    traffic: Traffic,
    tmp_path: Path,
) -> None:
    with (
        process(told, store.url, tmp_path / "first") as first,
        process_after(first, told, store.url, tmp_path / "second") as second,
    ):
        with traffic.flowing():
            _wait_for_words(second, "standing by")
            first.wait_published(source)
            time.sleep(0.2)
            first.send(signal.SIGSTOP)
            _wait_for_words(second, "streaming slot")
            second.wait_caught_up(source)
            first.send(signal.SIGCONT)
            # It finds out by itself, and stands by.
            _wait_for_words(first, "standing by")
            second.wait_caught_up(source)
        second.kill()
        traffic.write()
        _wait_for_words(first, "streaming slot", 2)
        first.wait_caught_up(source)
        assert first.terminate() == 0, first.said()
    assert_equal(store, source, "public.t")


@contextmanager
def process_after(
    leader: CaptureProcess, told: Settings, log_url: str, output: Path
) -> Iterator[CaptureProcess]:
    """A second process, started when the first one leads."""
    _wait_for_words(leader, "streaming slot")
    with process(told, log_url, output) as made:
        yield made


def test_a_process_that_is_told_to_end_does_so_with_status_0_whatever_it_is_doing(
    told: Settings, source: psycopg.Connection, store: FileStore, tmp_path: Path
) -> None:
    with (
        process(told, store.url, tmp_path / "first") as first,
        process_after(first, told, store.url, tmp_path / "second") as second,
    ):
        _wait_for_words(second, "standing by")
        assert second.terminate() == 0, second.said()
        assert first.terminate() == 0, first.said()


def test_of_two_one_leads_and_the_other_takes_over_when_it_ends(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    told = settings(database.dsn)
    first, second = Running(told, store), Running(told, store)
    with first:
        first.wait_for_stream()
        with second:
            second.wait_until(lambda: _walsender_count(source) == 2)
            source.execute("INSERT INTO t VALUES (1, 'first')")
            wait_caught_up(first, source)
            assert second.value("leader") == 0
            first.stop()
            second.wait_for_stream()
            source.execute("INSERT INTO t VALUES (2, 'second')")
            wait_caught_up(second, source)
            assert second.value("leader") == 1 and first.value("leader") == 0
    assert_equal(store, source, "public.t")


def _walsender_count(connection: psycopg.Connection) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_a_standby_holds_nothing_between_its_tries(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    told = settings(database.dsn)
    with Running(told, store) as leader:
        leader.wait_for_stream()
        with Running(told, store) as standby:
            standby.wait_until(lambda: _walsender_count(source) == 2)
            query = """SELECT state, backend_xmin, wait_event_type FROM pg_stat_activity
                        WHERE backend_type = 'walsender'
                          AND pid <> (SELECT active_pid FROM pg_replication_slots
                                       WHERE slot_name = %s)"""
            standby.wait_until(
                lambda: source.execute(query, [NAMES.slot]).fetchall() == [("idle", None, "Client")]
            )


def test_leader_and_standby_outlive_a_restart_of_postgres(
    postgres_server: ServerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = postgres_server()
    store = FileStore(tmp_path / "log")
    told = settings(server.dsn)
    with server.connect() as connection:
        connection.execute("CREATE TABLE public.t (id bigint PRIMARY KEY, v text)")
    with Running(told, store) as first:
        first.wait_for_stream()
        with Running(told, store) as second:
            second.wait_until(lambda: "standing by" in caplog.text)
            server.restart()
            with server.connect() as connection:
                wait_until(lambda: first.value("leader") + second.value("leader") == 1)
                wait_until(lambda: _walsender_count(connection) == 2)
                connection.execute("INSERT INTO t VALUES (1, 'a')")
                leader = first if first.value("leader") else second
                wait_caught_up(leader, connection)
                assert_equal(store, connection, "public.t")


def test_f030_a_slot_that_a_dead_capture_is_still_making_is_waited_for(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = settings(database.dsn)
    is_made = "SELECT count(*) FROM pg_replication_slots WHERE active"
    with database.connect() as forgetful, caplog.at_level(logging.WARNING):
        forgetful.execute("BEGIN")
        forgetful.execute("CREATE TABLE half_made (a int)")
        with process(told, store.url, tmp_path / "said.txt") as first:
            first.wait_until(lambda: source.execute(is_made).fetchone() == (1,))
            first.kill()
        with Running(told, store) as capture:
            capture.wait_until(lambda: "which is waited for" in caplog.text)
            forgetful.execute("ROLLBACK")
            capture.wait_for_stream()
            source.execute("INSERT INTO t VALUES (1, 'a')")
            wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
