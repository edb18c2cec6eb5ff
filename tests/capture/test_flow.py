"""What Postgres commits is what the log holds, and the slot lets go of all of it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.capture import Limits
from tailrace.log import Reader
from tailrace.log.verify import verify
from tailrace.model import Offset
from tailrace.postgres.server import wal_position
from tailrace.storage import FileStore
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import (
    FAST,
    Running,
    confirmed,
    is_published,
    process,
    settings,
    wait_acknowledged,
    wait_caught_up,
    wait_until,
)
from tests.log.faulty_store import WatchedStore
from tests.memory import peak_bytes
from tests.server import Database, ServerFactory, both_versions

FLOOD_S = float(os.environ.get("FLOOD_S", "6"))
"""How long a flood lasts; two minutes prove more."""

HUGE_ROWS = int(os.environ.get("HUGE_ROWS", "400000"))
"""How many rows one transaction writes; `make soak` takes five million."""


@pytest.fixture
def capture(database: Database, source: psycopg.Connection, store: FileStore) -> Running:
    """Capture of public.t alone; public.other is there for traffic that nobody publishes."""
    source.execute("CREATE TABLE public.other (a text)")
    return Running(settings(database.dsn, "public.t", "public.extra*"), store)


def flood(connection: psycopg.Connection, megabytes: int = 8) -> None:
    """Write WAL that no publication sends."""
    for _ in range(megabytes):
        connection.execute(
            "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 900)"
        )


@both_versions
def test_every_kind_of_change_reaches_the_log(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g")
        source.execute("UPDATE t SET v = 'changed' WHERE id % 3 = 0")
        source.execute("UPDATE t SET id = -id WHERE id % 7 = 0")
        source.execute("DELETE FROM t WHERE id % 5 = 0")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    assert sum(1 for _ in read_changes(store)) == 1000 + 333 + 142 + 200


def test_what_was_committed_is_acknowledged_when_capture_stops(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
    wait_until(lambda: confirmed(source) == Reader(store).tip().position)


def test_f011_the_slot_advances_under_foreign_wal_before_and_after_the_first_change(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        for round_number in range(2):
            flood(source)
            wait_acknowledged(capture, source)
            source.execute("INSERT INTO t VALUES (%s, 'a')", [round_number])
            wait_caught_up(capture, source)
        flood(source)
        wait_acknowledged(capture, source)
        assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")
    assert len(list(Reader(store).walk(Offset.whole(0)))) <= 2


def test_f012_foreign_wal_does_not_carry_the_slot_past_a_change_that_is_not_durable(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    gate = threading.Event()
    held = threading.Event()

    def before(what: str, key: str) -> None:
        if what == "put" and key.startswith("segments/") and capture.value("received_lsn"):
            held.set()
            assert gate.wait(60)

    capture.store = WatchedStore(store, before=before)
    with capture:
        capture.wait_for_stream()
        before_change = wal_position(source)
        source.execute("INSERT INTO t VALUES (1, 'a')")
        after_change = wal_position(source)
        assert held.wait(60)
        flood(source)
        end = wal_position(source)
        capture.wait_until(lambda: capture.value("received_lsn") >= end)
        acknowledged = capture.value("acknowledged_lsn")
        assert acknowledged < after_change and confirmed(source) < after_change
        assert acknowledged <= before_change
        gate.set()
        capture.wait_until(lambda: confirmed(source) >= end)
        assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


def test_mixed_traffic_is_captured_whole(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        for number in range(40):
            if number % 4 == 0:
                flood(source, 1)
            with source.transaction():
                source.execute(
                    "INSERT INTO t SELECT %s * 100 + g, 'a' FROM generate_series(1, 50) g", [number]
                )
                source.execute("INSERT INTO other VALUES ('beside it')")
                source.execute("DELETE FROM t WHERE id %% 10 = %s", [number % 10])
        wait_caught_up(capture, source)
        assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


@pytest.mark.parametrize(
    ("is_published", "version"), [(False, 16), (True, 18)], ids=["foreign", "published"]
)
def test_f011_a_flood_with_short_timeouts_costs_no_connection(
    database: Database, source: psycopg.Connection, store: FileStore, is_published: bool
) -> None:
    source.execute("CREATE TABLE public.other (a text)")
    short = Limits(status_interval_s=0.5, receive_timeout_s=2.0, progress_interval_s=0.2)
    capture = Running(settings(database.dsn, "public.t", limits=short, sender_timeout_s=2), store)
    with capture:
        capture.wait_for_stream()
        end_at = time.monotonic() + FLOOD_S / 2
        number = 0
        while time.monotonic() < end_at:
            number += 1
            if is_published:
                source.execute(
                    "INSERT INTO t SELECT %s * 200 + g, repeat('x', 5000) "
                    "FROM generate_series(1, 200) g",
                    [number],
                )
            else:
                flood(source, 1)
        wait_caught_up(capture, source)
        assert capture.value("reconnects_total") == 0
    assert_equal(store, source, "public.t")


@both_versions
def test_f015_f031_a_transaction_open_across_an_acknowledgement_is_delivered(
    capture: Running, database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with database.connect() as slow, slow.transaction(), capture:
        # Tables are taken up before the transaction begins to write.
        capture.wait_for_stream()
        slow.execute("INSERT INTO t VALUES (1, 'slow')")
        after_row = wal_position(source)
        source.execute("INSERT INTO t VALUES (2, 'quick')")
        flood(source, 1)
        capture.wait_until(lambda: confirmed(source) > after_row)
    again = Running(capture.told, store)
    with again:
        again.wait_for_stream()
        wait_caught_up(again, source)
    assert_equal(store, source, "public.t")


@both_versions
def test_f042_only_what_was_committed_is_captured(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        with source.transaction(force_rollback=True):
            source.execute("INSERT INTO t VALUES (1, 'rolled back')")
        with source.transaction():
            source.execute("INSERT INTO t VALUES (2, 'kept')")
            with source.transaction(force_rollback=True):
                source.execute("INSERT INTO t VALUES (3, 'to savepoint')")
            source.execute("INSERT INTO t VALUES (4, 'kept')")
        source.execute(
            """DO $$ BEGIN
                 INSERT INTO public.t VALUES (5, 'kept');
                 BEGIN INSERT INTO public.t VALUES (6, 'caught'); INSERT INTO public.t VALUES (5);
                 EXCEPTION WHEN unique_violation THEN NULL; END;
               END $$"""
        )
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    assert [change.new for change in read_changes(store)] == [
        {"id": str(number), "v": "kept"} for number in (2, 4, 5)
    ]


@both_versions
def test_f043_f044_of_spilled_and_interleaved_transactions_only_what_was_committed_comes(
    postgres_server: ServerFactory, store: FileStore, version: int
) -> None:
    server = postgres_server({"logical_decoding_work_mem": "64kB"}, version=version)
    fill = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(%s, %s::int) g"
    limits = replace(FAST, seal_bytes=1 << 16, part_bytes=1 << 16)
    with server.connect() as source, server.connect() as other:
        source.execute("CREATE TABLE public.t (id bigint PRIMARY KEY, v text)")
        with Running(settings(server.dsn, limits=limits), store) as capture:
            capture.wait_for_stream()
            with source.transaction(), other.transaction():
                for start in range(0, 9000, 3000):
                    source.execute(fill, [start, start + 999])
                    other.execute(fill, [start + 1000, start + 1999])
                    # Larger than what is decoded in memory, and undone.
                    with source.transaction(force_rollback=True):
                        source.execute(fill, [start + 2000, start + 2999])
                        source.execute("UPDATE t SET v = 'undone' WHERE id >= %s", [start])
                    with other.transaction():
                        other.execute("UPDATE t SET v = 'kept' WHERE id >= %s", [start + 1000])
            with other.transaction(force_rollback=True):
                other.execute("DELETE FROM t")
            source.execute("BEGIN")
            source.execute("DELETE FROM t WHERE id < 500")
            source.execute("PREPARE TRANSACTION 'spilled'")
            other.execute(fill, [20_000, 22_000])
            source.execute("COMMIT PREPARED 'spilled'")
            source.execute("UPDATE t SET id = -id WHERE id % 7 = 0")
            # Idle, and acknowledged beyond what is published.
            source.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 1000)")
            wait_acknowledged(capture, source)
        assert_equal(store, source, "public.t")
        links = Reader(store).walk(Offset.whole(0))
        assert sum(len(link.header.parts) > 1 for link in links) >= 2


@both_versions
def test_f047_a_prepared_transaction_comes_when_it_is_committed_and_once(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        for gid, row in (("kept", 1), ("dropped", 2)):
            source.execute("BEGIN")
            source.execute("INSERT INTO t VALUES (%s, 'prepared')", [row])
            source.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
        source.execute("INSERT INTO t VALUES (3, 'before')")
        wait_caught_up(capture, source)
        source.execute("ROLLBACK PREPARED 'dropped'")
        source.execute("COMMIT PREPARED 'kept'")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    assert [change.new["id"] for change in read_changes(store) if change.new] == ["3", "1"]


def test_f048_transactions_without_a_published_change_leave_no_segment(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("CREATE TABLE unrelated (a int)")
        source.execute("INSERT INTO other VALUES ('x')")
        source.execute("SELECT pg_current_xact_id()")
        wait_acknowledged(capture, source)
    assert list(Reader(store).walk(Offset.whole(0))) == []


@both_versions
def test_f049_a_large_value_that_did_not_change_is_left_out_and_the_rest_comes(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        source.execute("CREATE TABLE extra (id int PRIMARY KEY, small text, large text)")
        source.execute("ALTER TABLE extra ALTER large SET STORAGE EXTERNAL")
        capture.wait_for_stream()
        wait_until(lambda: is_published(source, "extra"))
        source.execute("INSERT INTO extra VALUES (1, 'a', repeat('x', 10000))")
        source.execute("UPDATE extra SET small = 'b'")
        wait_caught_up(capture, source)
    assert [sorted(change.new) for change in read_changes(store) if change.new] == [
        ["id", "large", "small"],
        ["id", "small"],
    ]
    assert_equal(store, source, "public.extra")


@both_versions
def test_f054_f055_truncate_and_cascade_come_in_order(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        source.execute("CREATE TABLE extra (id int PRIMARY KEY)")
        source.execute(
            "CREATE TABLE extra_child "
            "(id int PRIMARY KEY, parent int REFERENCES extra ON DELETE CASCADE)"
        )
        capture.wait_for_stream()
        wait_until(lambda: is_published(source, "extra") and is_published(source, "extra_child"))
        source.execute("INSERT INTO extra SELECT generate_series(1, 20)")
        source.execute("INSERT INTO extra_child SELECT g, g % 10 + 1 FROM generate_series(1, 30) g")
        source.execute("DELETE FROM extra WHERE id < 5")
        source.execute("INSERT INTO t VALUES (1, 'x')")
        wait_caught_up(capture, source)
        assert_equal(store, source, "public.extra", "public.extra_child", "public.t")
        source.execute("TRUNCATE extra, t CASCADE")
        source.execute("INSERT INTO extra VALUES (99)")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.extra", "public.extra_child", "public.t")


@both_versions
def test_f058_each_row_is_read_with_the_shape_it_was_written_in(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        with source.transaction():
            source.execute("INSERT INTO t VALUES (1, 'a')")
            source.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
            source.execute("INSERT INTO t VALUES (2, 'b', 8)")
            source.execute("ALTER TABLE t DROP COLUMN v")
            source.execute("INSERT INTO t VALUES (3, 9)")
        wait_caught_up(capture, source)
    assert [change.new for change in read_changes(store)] == [
        {"id": "1", "v": "a"},
        {"id": "2", "v": "b", "w": "8"},
        {"id": "3", "w": "9"},
    ]


@both_versions
def test_f071_messages_of_others_neither_stall_the_stream_nor_reach_the_log(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        for is_transactional in (True, False):
            source.execute("SELECT pg_logical_emit_message(%s, 'theirs', 'x')", [is_transactional])
        source.execute("SELECT pg_logical_emit_message(false, 'tailrace.x', 'x')")
        with source.transaction():
            source.execute("SELECT pg_logical_emit_message(true, 'theirs', 'x')")
            source.execute("INSERT INTO t VALUES (1, 'a')")
        source.execute("SELECT pg_logical_emit_message(true, 'theirs', 'x')")
        wait_acknowledged(capture, source)
    assert_equal(store, source, "public.t")
    (link,) = Reader(store).walk(Offset.whole(0))
    assert link.header.transaction_count == 1


@both_versions
def test_f045_a_transaction_larger_than_memory_passes_through_in_parts(
    database: Database, source: psycopg.Connection, store: FileStore, tmp_path: Path
) -> None:
    limits = replace(FAST, seal_bytes=1 << 19, part_bytes=1 << 19, pending_bytes_max=2 << 20)
    with process(settings(database.dsn, limits=limits), store.url, tmp_path / "said") as capture:
        capture.wait_published(source)
        fill = "INSERT INTO t SELECT g, repeat('x', 150) || g FROM generate_series(%s, %s::int) g"
        source.execute(fill, [1, 40_000])
        capture.wait_caught_up(source)
        before = peak_bytes(capture.pid)
        source.execute(fill, [40_001, 40_000 + HUGE_ROWS])
        capture.wait_caught_up(source)
        peak = peak_bytes(capture.pid)
        grown = peak - before
        assert capture.terminate() == 0, capture.said()
    *_, huge = Reader(store).walk(Offset.whole(0))
    assert huge.header.change_count == HUGE_ROWS
    assert len(huge.header.parts) > 50
    # The first transaction has needed as much as any. Allocators wobble, by up to 20 MiB whatever
    # its size; whoever held all of it would need at least its bytes.
    assert grown < huge.data_bytes / 2
    assert peak < 512 << 20
    *_, verification = verify(store)
    assert verification.problems == [] and verification.change_count == 40_000 + HUGE_ROWS
