"""Drains: every committed row of the buffers comes into the log, once, in order."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest

from tailrace.capture.drains import passed_rows, taking
from tailrace.capture.drains.taking import Taking
from tailrace.errors import SourceError
from tailrace.log import Reader
from tailrace.log.bases import newest_positions
from tailrace.log.header import DRAINED
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.log.verify import verify
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.frames import Frames
from tailrace.storage import FileStore
from tests.capture.draining import (
    begin_log,
    drain_all,
    drainer,
    folded,
    logged,
    numbers,
    source_rows,
    writers,
)
from tests.capture.running import ROOT
from tests.capture.tracked import buffer_bytes, buffered_count, let_go, oid_of, track
from tests.server import VERSIONS, ServerFactory, Servers


@pytest.fixture(params=VERSIONS)
def conn(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t is in trigger mode."""
    with tracked(source_servers, request.param) as connection:
        yield connection


@pytest.fixture
def newest(source_servers: Servers) -> Iterator[psycopg.Connection]:
    """The same on the newest version only, for what has nothing to do with the version."""
    with tracked(source_servers, VERSIONS[0]) as connection:
        yield connection


@contextmanager
def tracked(servers: Servers, version: int) -> Iterator[psycopg.Connection]:
    """A fresh database with a table in trigger mode."""
    with servers(version).database() as database, database.connect() as connection:
        connection.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
        track(connection, "public.t")
        yield connection


def is_sound(store: FileStore) -> bool:
    """What `tailrace log verify` says."""
    *_, last = verify(store)
    return not last.problems


def test_a_drain_is_one_transaction_with_all_that_was_committed(
    conn: psycopg.Connection, store: FileStore
) -> None:
    conn.execute("INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 3) AS n")
    conn.execute("UPDATE t SET v = 'x' WHERE id = 2")
    conn.execute("DELETE FROM t WHERE id = 3")
    drain_all(conn, store)
    assert folded(store) == source_rows(conn)
    assert {row["_origin"] for row in logged(store)} == {"trigger"}
    assert len({row["_commit_lsn"] for row in logged(store)}) == 1
    assert numbers(conn, store) == [1, 2, 3, 4, 5]
    assert is_sound(store)


def test_f072_a_transaction_that_was_open_during_a_drain_comes_with_the_next(
    conn: psycopg.Connection, store: FileStore
) -> None:
    with psycopg.connect(conn.info.dsn) as open_one:
        open_one.execute("INSERT INTO t VALUES (1, 'first, but committed last')")
        conn.execute("INSERT INTO t VALUES (2, 'x')")
        with drainer(conn, store) as drains:
            drains.drain(lambda: None)
            assert sorted(folded(store)) == [2]
            open_one.commit()
            conn.execute("INSERT INTO t VALUES (3, 'y')")
            drains.drain(lambda: None)
    assert numbers(conn, store) == [2, 1, 3]
    assert folded(store) == source_rows(conn)


def test_a_drain_of_nothing_appends_nothing(conn: psycopg.Connection, store: FileStore) -> None:
    begin_log(conn, store)
    with drainer(conn, store) as drains:
        assert drains.drain(lambda: None) is None
    assert len(store.list("segments/")) == 1


def test_what_is_drained_is_told_by_the_log_and_by_nothing_else(
    conn: psycopg.Connection, store: FileStore
) -> None:
    """Nothing is deleted, as if each leader had died after its append."""
    for number in range(4):
        conn.execute("INSERT INTO t VALUES (%s, 'x')", [number])
        drain_all(conn, store)
    assert numbers(conn, store) == [1, 2, 3, 4]
    note = Reader(store).tip().note
    assert note is not None and DRAINED in note


def test_what_is_drained_is_known_when_retention_has_dropped_all_it_can(
    conn: psycopg.Connection, store: FileStore
) -> None:
    for number in range(3):
        conn.execute("INSERT INTO t VALUES (%s, 'x')", [number])
        drain_all(conn, store)
    retain(store, RetentionPolicy(age_s=0.0, bytes_max=0), now_s=time.time() + 3600)
    assert numbers(conn, store) == [3]
    conn.execute("INSERT INTO t VALUES (3, 'x')")
    drain_all(conn, store, deletes=True)
    assert numbers(conn, store) == [3, 4]
    assert buffered_count(conn, "public.t") == 0


def test_a_table_that_comes_back_in_another_shape_is_read_in_it_by_the_same_leader(
    conn: psycopg.Connection, store: FileStore
) -> None:
    with drainer(conn, store) as drains:
        conn.execute("INSERT INTO t VALUES (1, 'a')")
        drains.drain(lambda: None)
        let_go(conn, "public.t")
        conn.execute("ALTER TABLE t ADD w int")
        track(conn, "public.t")
        conn.execute("INSERT INTO t VALUES (2, 'b', 7)")
        drains.drain(lambda: None)
    assert folded(store)[2] == {"id": 2, "v": "b", "w": 7}


def test_only_rows_that_the_log_has_are_deleted(conn: psycopg.Connection, store: FileStore) -> None:
    conn.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 5) AS n")
    with drainer(conn, store) as drains:
        assert drains.delete(lambda: None) == 0
        drains.drain(lambda: None)
        conn.execute("INSERT INTO t VALUES (6, 'later')")
        assert drains.delete(lambda: None) == 5
        assert drains.delete(lambda: None) == 0
        assert buffered_count(conn, "public.t") == 1
        drains.drain(lambda: None)
    assert folded(store) == source_rows(conn)


def test_a_buffer_stays_as_small_as_what_waits_in_it(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_rows, "BATCH_PAGES", 2)
    monkeypatch.setattr(passed_rows, "DEAD_ROWS_MIN", 1000)
    sizes = []
    with drainer(conn, store) as drains:
        for first in range(0, 20_000, 2000):
            query = "INSERT INTO t SELECT n, 'x' FROM generate_series(%s::int, %s) AS n"
            conn.execute(query, [first, first + 1999])
            sizes.append(buffer_bytes(conn, "public.t"))
            drains.drain(lambda: None)
            assert drains.delete(lambda: None) == 2000
    # A vacuum that meets somebody else's leaves the rows of its round to the next one.
    assert sizes[0] > 0
    assert max(sizes) <= 4 * sizes[0]
    assert folded(store) == source_rows(conn)


def test_a_large_drain_goes_to_parts_and_keeps_its_order(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PART_BYTES", 64 << 10)
    monkeypatch.setattr("tailrace.capture.buffers.copying.BLOCK_BYTES", 16 << 10)
    conn.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 3000) AS n")
    conn.execute("UPDATE t SET v = 'y' || id")
    with drainer(conn, store) as drains:
        header = drains.drain(lambda: None)
    assert header is not None and len(header.parts) > 3
    assert numbers(conn, store) == list(range(1, 6001))
    assert folded(store) == source_rows(conn)
    assert is_sound(store)


@pytest.mark.parametrize("row_count", [900, 5_500])
def test_a_trigger_of_the_user_is_put_in_order_across_blocks(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch, row_count: int
) -> None:
    monkeypatch.setattr("tailrace.capture.buffers.copying.BLOCK_BYTES", 4 << 10)
    monkeypatch.setattr("tailrace.capture.drains.taking.PART_BYTES", 16 << 10)
    conn.execute(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.id = 1 THEN UPDATE t SET v = 'touched' WHERE id = (SELECT max(id) FROM t); END IF; "
        "RETURN NULL; END $$; "
        "CREATE TRIGGER a_touch AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION touch()"
    )
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("INSERT INTO t VALUES (0, 'other')")
        conn.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, %s) AS n", [row_count])
        other.commit()
    drain_all(conn, store)
    found = folded(store)
    assert found[row_count]["v"] == "touched"
    assert found == source_rows(conn)
    assert sorted(numbers(conn, store)) == list(range(1, row_count + 3))


def test_a_key_that_a_trigger_of_the_user_changes_is_put_in_order_across_blocks(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.buffers.copying.BLOCK_BYTES", 16 << 10)
    monkeypatch.setattr("tailrace.capture.drains.taking.PART_BYTES", 64 << 10)
    # What a shape of an earlier buffer says of columns that are not in this one does not matter.
    conn.execute("ALTER TABLE t ALTER id TYPE bigint")
    conn.execute("ALTER TABLE t ALTER id TYPE int")
    conn.execute("ALTER TABLE t ALTER id TYPE bigint")
    let_go(conn, "public.t")
    conn.execute("ALTER TABLE t ALTER id TYPE int")
    track(conn, "public.t")
    conn.execute(
        "CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE t SET id = -id WHERE id = NEW.id; RETURN NULL; END $$; "
        "CREATE TRIGGER a_turn AFTER INSERT ON t FOR EACH ROW WHEN (NEW.id > 0) "
        "EXECUTE FUNCTION turn()"
    )
    conn.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 5000) AS n")
    drain_all(conn, store)
    assert folded(store) == source_rows(conn)


def test_more_of_a_transaction_than_memory_holds_is_cut_apart_and_asks_for_a_base(
    newest: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that a trigger of the user's keeps: one row, changed as often as others are put."""
    conn, limit = newest, 64 << 10
    held: list[int] = []
    monkeypatch.setattr("tailrace.capture.buffers.copying.BLOCK_BYTES", 16 << 10)
    monkeypatch.setattr("tailrace.capture.buffers.copying.KNOT_BYTES_MAX", limit)
    monkeypatch.setattr("tailrace.capture.drains.taking.PART_BYTES", 16 << 10)
    add = Taking.add

    def note(taking: Taking, frames: Frames) -> None:
        held.append(frames.data_bytes)
        add(taking, frames)

    monkeypatch.setattr(Taking, "add", note)
    conn.execute(
        "CREATE TABLE orders (id int); INSERT INTO t VALUES (1, '0'); "
        "CREATE FUNCTION total() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE t SET v = v::int + 1 WHERE id = 1; RETURN NULL; END $$; "
        "CREATE TRIGGER total AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION total()"
    )
    conn.execute("INSERT INTO orders SELECT generate_series(1, 5000)")
    drain_all(conn, store)
    assert max(held) < 2 * limit
    assert folded(store) == source_rows(conn)
    assert wanted_bases(store, newest_positions(store)).keys() == {oid_of(conn, "public.t")}


@pytest.mark.parametrize(
    "failpoint",
    [
        *("drain.before_message", "drain.after_message", "seal.before_put", "seal.after_put"),
        *("drain.after_append", "drain.after_append:2"),
        *("drain.after_part", "drain.after_part:2", "part.before_put:2", "part.after_put:3"),
    ],
)
def test_a_drain_killed_at_any_step_neither_loses_nor_doubles(
    newest: psycopg.Connection, store: FileStore, failpoint: str
) -> None:
    conn = newest
    begin_log(conn, store)
    conn.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20) AS n")
    then = "parts" if "part" in failpoint else ""
    killed = subprocess.run(
        [sys.executable, "-m", "tests.capture.draining", conn.info.dsn, store.url, then],
        cwd=ROOT,
        env={**os.environ, "TAILRACE_FAILPOINT": failpoint},
        timeout=120,
        check=False,
    )
    assert killed.returncode in (0, 137)
    conn.execute("UPDATE t SET v = 'y' WHERE id <= 5")
    drain_all(conn, store, deletes=True)
    assert numbers(conn, store) == list(range(1, 26))
    assert folded(store) == source_rows(conn)
    assert buffered_count(conn, "public.t") == 0


def test_a_drain_that_is_told_to_stop_leaves_nothing_behind(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 4000) AS n")

    def stop() -> None:
        raise SourceError("told to stop", retry=True)

    monkeypatch.setattr("tailrace.capture.buffers.copying.BLOCK_BYTES", 1 << 10)
    with drainer(conn, store) as drains:
        with pytest.raises(SourceError, match="told to stop"):
            drains.drain(stop)
        assert logged(store) == []
        drains.drain(lambda: None)
    assert folded(store) == source_rows(conn)


def test_f072_writers_in_every_order_of_commit_are_in_the_log_once(
    conn: psycopg.Connection, store: FileStore
) -> None:
    """Eight writers, drains beside them, a new leader now and then, a third of deletes skipped."""
    with writers(conn.info.dsn, 8):
        for turn in count():
            if turn >= 6 and len(numbers(conn, store)) > 100:
                break
            with drainer(conn, store, writer_id=f"leader{turn}") as drains:
                for _ in range(8):
                    drains.drain(lambda: None)
                    if turn % 3:
                        drains.delete(lambda: None)
    drain_all(conn, store, deletes=True)
    assert folded(store) == source_rows(conn)
    found = numbers(conn, store)
    assert len(found) == len(set(found))
    assert buffered_count(conn, "public.t") == 0


def test_what_a_crash_of_postgres_takes_back_was_never_drained(
    postgres_server: ServerFactory, store: FileStore
) -> None:
    """Rows whose commit was not synchronous are in the log only if they survive."""
    server = postgres_server({"wal_level": "replica", "wal_writer_delay": "10s", "fsync": "on"})
    with server.connect() as conn:
        conn.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
        track(conn, "public.t")
        conn.execute("SET synchronous_commit = off")
        conn.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 50) AS n")
        drain_all(conn, store)
        conn.execute("INSERT INTO t SELECT n, 'y' FROM generate_series(51, 60) AS n")
    server.restart(immediate=True)
    with server.connect() as conn:
        assert len(source_rows(conn)) >= 50
        drain_all(conn, store)
        assert folded(store) == source_rows(conn)


def test_f073_a_transaction_open_for_long_holds_up_neither_drains_nor_deletes(
    conn: psycopg.Connection, store: FileStore
) -> None:
    with psycopg.connect(conn.info.dsn) as long_one, drainer(conn, store) as drains:
        long_one.execute("INSERT INTO t VALUES (0, 'long')")
        for number in range(1, 6):
            conn.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            header = drains.drain(lambda: None)
            assert header is not None and header.change_count == 1
            assert drains.delete(lambda: None) == 1
            assert buffered_count(conn, "public.t") == 0
        long_one.commit()
        drains.drain(lambda: None)
    assert folded(store) == source_rows(conn)


def test_nobody_waits_in_a_transaction_of_his_own_while_rows_are_read(
    conn: psycopg.Connection, store: FileStore
) -> None:
    """A server that sorts for minutes would end a session that is idle in one."""
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"""
    found = []
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    with drainer(conn, store) as drains:
        drains.drain(lambda: found.append(conn.execute(query).fetchone()))
    assert found and set(found) == {(0,)}


def test_the_log_goes_on_after_many_drains_and_a_checkpoint(
    conn: psycopg.Connection, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A progress object stands at the end: the note is found behind it."""
    monkeypatch.setattr("tailrace.log.writer.SEGMENTS_PER_CHECKPOINT", 2)
    with drainer(conn, store) as drains:
        for number in range(4):
            conn.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            drains.drain(lambda: None)
    drain_all(conn, store)
    assert numbers(conn, store) == [1, 2, 3, 4]
