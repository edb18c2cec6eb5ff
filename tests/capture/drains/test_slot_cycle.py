"""Drains, then a slot, then drains again: every row once, whichever way it came."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus

from tailrace.capture.assembly import Assembly, Whole
from tailrace.capture.buffers.shapes import BufferShapes, ask_for_base
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.drains.outstanding import Outstanding
from tailrace.capture.drains.passed_marks import PassedMarks, put_mark
from tailrace.capture.drains.slot_begin import begin_slot
from tailrace.errors import SourceError
from tailrace.log import Reader, Writer, recover_tip
from tailrace.log.header import DRAINED
from tailrace.log.merge import MergePolicy, Merger
from tailrace.model import Lsn
from tailrace.postgres.buffer import buffer
from tailrace.postgres.frames import WAL_HEADER_BYTES
from tailrace.postgres.messages import Messages
from tailrace.postgres.snapshot import Patience
from tailrace.storage import FileStore, Store
from tests.capture.draining import (
    SOURCE,
    drain_all,
    drainer,
    folded,
    leading,
    numbers,
    source_rows,
    writers,
)
from tests.capture.running import NAMES, ROOT, wait_until
from tests.capture.tracked import buffered_count, let_go, oid_of, track
from tests.log.making import no_catalog
from tests.server import VERSIONS, ServerFactory, Servers

PATIENCE = Patience(try_ms=5_000, all_s=120.0, say=lambda _: None, go_on=lambda: None)


@pytest.fixture(params=VERSIONS)
def conn(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t is in trigger mode and its buffer published."""
    with source_servers(request.param).database() as database, database.connect() as connection:
        make_source(connection)
        yield connection


def make_source(conn: psycopg.Connection) -> None:
    """A table in trigger mode, and publications."""
    conn.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
    track(conn, "public.t")
    names = (sql.Identifier(NAMES.publication), sql.Identifier(NAMES.buffers))
    conn.execute(sql.SQL("CREATE PUBLICATION {}").format(names[0]))
    publish = "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert')"
    table = buffer(oid_of(conn, "public.t"))
    conn.execute(sql.SQL(publish).format(names[1], table))


def begin(conn: psycopg.Connection, store: Store) -> None:
    """End the drains with a slot."""
    dsn = conn.info.dsn
    with drainer(conn, store, writer_id="last") as drains, leading(dsn) as pid:
        begin_slot(dsn, drains, NAMES, PATIENCE, leader_pid=pid)


def stream(conn: psycopg.Connection, store: Store) -> Lsn:
    """What the slot holds after the log's end comes into the log, as capture brings it."""
    tip = recover_tip(store)
    assert tip is not None
    rows = conn.execute(
        "SELECT (lsn - '0/0')::bigint, data "
        "FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
        "'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
        [NAMES.slot, f"{NAMES.publication},{NAMES.buffers}"],
    ).fetchall()
    writer = Writer(store, tip, writer_id="stream", describe=no_catalog)
    dsn = conn.info.dsn
    translator = Translator(BufferShapes(dsn), want_base=ask_for_base(dsn, store))
    to = TranslatingWriter(writer, translator)
    head = bytes(WAL_HEADER_BYTES - 9)
    messages = [b"w" + lsn.to_bytes(8, "big") + head + data for lsn, data in rows]
    for found in Assembly(tip.position, part_bytes=1 << 30).take(Messages.of(messages)):
        if isinstance(found, Whole):
            to.append(found.frames)
    return writer.position


def drop_slot(conn: psycopg.Connection) -> None:
    """Somebody drops the slot, whatever it still holds."""
    conn.execute("SELECT pg_drop_replication_slot(%s)", [NAMES.slot])


def test_a_slot_begins_with_what_its_snapshot_shows_and_streams_the_rest(
    conn: psycopg.Connection, store: FileStore
) -> None:
    conn.execute("INSERT INTO t VALUES (1, 'drained')")
    drain_all(conn, store)
    conn.execute("INSERT INTO t VALUES (2, 'before the slot')")
    begin(conn, store)
    note = Reader(store).tip().note
    assert note is not None and DRAINED not in note
    conn.execute("INSERT INTO t VALUES (3, 'after the slot')")
    stream(conn, store)
    assert numbers(conn, store) == [1, 2, 3]
    assert folded(store) == source_rows(conn)


def test_a_slot_begins_though_nothing_is_outstanding(
    conn: psycopg.Connection, store: FileStore
) -> None:
    conn.execute("INSERT INTO t VALUES (1, 'drained')")
    drain_all(conn, store, deletes=True)
    begin(conn, store)
    note = Reader(store).tip().note
    assert note is not None and DRAINED not in note


def test_transactions_in_the_way_of_a_slot_are_named_and_draining_goes_on(
    conn: psycopg.Connection, store: FileStore
) -> None:
    with psycopg.connect(conn.info.dsn) as open_one:
        open_one.execute("INSERT INTO t VALUES (1, 'open')")
        with drainer(conn, store) as drains, leading(conn.info.dsn) as pid:
            impatient = Patience(try_ms=100, all_s=0.1, say=lambda _: None, go_on=lambda: None)
            with pytest.raises(SourceError, match="open transactions") as raised:
                begin_slot(conn.info.dsn, drains, NAMES, impatient, leader_pid=pid)
            assert raised.value.retry
            open_one.commit()
            drains.drain(lambda: None)
    slots = conn.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", [SOURCE])
    assert slots.fetchone() == (0,)
    assert folded(store) == source_rows(conn)


def test_a_slot_is_made_again_if_a_buffer_was_altered_meanwhile(
    conn: psycopg.Connection, store: FileStore
) -> None:
    """Postgres may miss that while it makes the slot, and decode rows in the shape before."""
    dsn = conn.info.dsn
    with drainer(conn, store) as drains, psycopg.connect(dsn) as others, leading(dsn) as pid:
        others.execute("SELECT pg_current_xact_id()")

        def go_on() -> None:
            if others.info.transaction_status == TransactionStatus.INTRANS:
                conn.execute("ALTER TABLE public.t ADD w text")
                others.commit()

        altering = replace(PATIENCE, try_ms=500, go_on=go_on)
        with pytest.raises(SourceError, match="altered while the slot was made") as caught:
            begin_slot(dsn, drains, NAMES, altering, leader_pid=pid)
        assert caught.value.retry
        assert conn.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
        begin_slot(dsn, drains, NAMES, PATIENCE, leader_pid=pid)


@pytest.mark.parametrize("has_mark", [False, True])
def test_f077_after_a_lost_slot_exactly_what_is_missing_is_drained(
    conn: psycopg.Connection, store: FileStore, has_mark: bool
) -> None:
    begin(conn, store)
    conn.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 5) AS n")
    if has_mark:
        put_mark(conn)
    with psycopg.connect(conn.info.dsn) as long_one:
        long_one.execute("INSERT INTO t VALUES (100, 'long')")
        conn.execute("UPDATE t SET v = 'y' WHERE id = 1")
        stream(conn, store)
        conn.execute("UPDATE t SET v = 'lost' WHERE id = 2")
        drop_slot(conn)
        long_one.commit()
    conn.execute("INSERT INTO t VALUES (101, 'afterwards')")
    drain_all(conn, store)
    assert sorted(numbers(conn, store)) == list(range(1, 10))
    assert folded(store) == source_rows(conn)
    note = Reader(store).tip().note
    assert note is not None and DRAINED in note


def test_f077_what_came_from_a_lost_slot_is_known_though_it_was_merged_with_the_slots_beginning(
    conn: psycopg.Connection, store: FileStore
) -> None:
    conn.execute("INSERT INTO t VALUES (0, 'drained')")
    begin(conn, store)
    for number in range(1, 4):
        conn.execute("INSERT INTO t VALUES (%s, 'streamed')", [number])
        stream(conn, store)
    policy = MergePolicy(segment_count_min=2, grace_s=0.0)
    merger = Merger(store, writer_id="merger", policy=policy)
    assert merger.step(time.time() + 10) == 4
    conn.execute("INSERT INTO t VALUES (4, 'lost')")
    drop_slot(conn)
    drain_all(conn, store)
    assert numbers(conn, store) == [1, 2, 3, 4, 5]


def test_f077_after_a_lost_slot_rows_are_not_taken_for_those_of_a_buffer_that_was_there_before(
    conn: psycopg.Connection, store: FileStore
) -> None:
    begin(conn, store)
    conn.execute("INSERT INTO t SELECT n, 'streamed' FROM generate_series(1, 5) AS n")
    stream(conn, store)
    let_go(conn, "public.t")
    track(conn, "public.t")
    conn.execute("INSERT INTO t SELECT n, 'lost' FROM generate_series(11, 15) AS n")
    drop_slot(conn)
    drain_all(conn, store)
    assert folded(store) == source_rows(conn)


def set_standby(conn: psycopg.Connection, name: str) -> None:
    """Let commits wait for this standby from now on, or for none."""
    alter = sql.SQL("ALTER SYSTEM SET synchronous_standby_names TO {}")
    conn.execute(alter.format(sql.Literal(name)))
    conn.execute("SELECT pg_reload_conf()")
    query = "SELECT current_setting('synchronous_standby_names')"
    wait_until(lambda: conn.execute(query).fetchone() == (name,))


@pytest.mark.parametrize("has_mark", [False, True])
def test_f077_what_came_from_a_lost_slot_before_its_commit_was_over_is_not_drained(
    postgres_server: ServerFactory, store: FileStore, has_mark: bool
) -> None:
    """A commit that waits for a standby is streamed, and for everybody else it still runs."""
    server = postgres_server({"synchronous_commit": "local"})
    calls: list[None] = []
    with server.database() as database, database.connect() as conn, database.connect() as late:
        make_source(conn)
        begin(conn, store)
        set_standby(conn, "nobody")
        late.execute("SET synchronous_commit TO on")
        commit = threading.Thread(target=late.execute, args=["INSERT INTO t VALUES (1, 'x')"])
        commit.start()
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: conn.execute(query).fetchone() is not None)
        if has_mark:
            put_mark(conn)
        stream(conn, store)
        drop_slot(conn)

        def end_commit() -> None:
            calls.append(None)
            set_standby(conn, "")
            commit.join()

        try:
            with drainer(conn, store) as drains:
                drains.drain(lambda: None if calls else end_commit(), always=True)
        finally:
            end_commit()
        drain_all(conn, store)
        assert numbers(conn, store) == [1]
        assert folded(store) == source_rows(conn)


def test_a_lost_slot_of_which_nothing_is_missing_is_closed_in_the_log(
    conn: psycopg.Connection, store: FileStore
) -> None:
    begin(conn, store)
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    stream(conn, store)
    drop_slot(conn)
    with drainer(conn, store) as drains:
        assert drains.drain(lambda: None, always=True) is not None
    assert numbers(conn, store) == [1]
    note = Reader(store).tip().note
    assert note is not None and DRAINED in note


def test_while_streaming_only_what_the_log_has_passed_is_deleted(
    conn: psycopg.Connection, store: FileStore
) -> None:
    begin(conn, store)
    marks = PassedMarks(SOURCE)
    conn.execute("INSERT INTO t VALUES (1, 'x'), (2, 'x')")
    before = stream(conn, store)
    assert marks.turn(conn, before, lambda: True) == 0
    conn.execute("INSERT INTO t VALUES (3, 'later')")
    assert marks.turn(conn, before, lambda: True) == 0
    assert buffered_count(conn, "public.t") == 3
    durable = stream(conn, store)
    assert marks.turn(conn, durable, lambda: True) == 2
    assert marks.turn(conn, durable, lambda: True) == 0
    assert buffered_count(conn, "public.t") == 1
    assert folded(store) == source_rows(conn)


@pytest.mark.parametrize("failpoint", ["slot.after_made", "slot.before_begun", "slot.after_begun"])
def test_a_beginning_of_a_slot_that_was_killed_is_made_again_or_goes_on(
    conn: psycopg.Connection, store: FileStore, failpoint: str
) -> None:
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    drain_all(conn, store)
    conn.execute("INSERT INTO t VALUES (2, 'x')")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.capture.draining", conn.info.dsn, store.url, "slot"],
        cwd=ROOT,
        env={**os.environ, "TAILRACE_FAILPOINT": failpoint},
        timeout=120,
        check=False,
    )
    assert killed.returncode == 137
    conn.execute("INSERT INTO t VALUES (3, 'x')")
    note = Reader(store).tip().note or {}
    if DRAINED in note:
        begin(conn, store)
    stream(conn, store)
    assert numbers(conn, store) == [1, 2, 3]
    assert folded(store) == source_rows(conn)


def test_f072_rounds_of_drains_and_slots_beside_writers_have_every_row_once(
    conn: psycopg.Connection, store: FileStore
) -> None:
    random = Random(7)
    with writers(conn.info.dsn, 8):
        for _ in range(3):
            for _ in range(3):
                drain_all(conn, store, deletes=random.random() < 0.7)
            begin(conn, store)
            marks = PassedMarks(SOURCE)
            for _ in range(5):
                durable = stream(conn, store)
                if random.random() < 0.7:
                    marks.turn(conn, durable, lambda: True)
            drop_slot(conn)
    drain_all(conn, store, deletes=True)
    found = numbers(conn, store)
    assert found and len(found) == len(set(found))
    assert folded(store) == source_rows(conn)
    assert buffered_count(conn, "public.t") == 0


@pytest.mark.parametrize(
    ("snapshot", "is_seen"), [("{0}:{5}:", True), ("{0}:{5}:{1}", False), ("{0}:{1}:", False)]
)
def test_f077_ids_that_were_streamed_are_compared_across_their_wrap(
    snapshot: str, is_seen: bool
) -> None:
    """Frames have the lower half of an id; a snapshot has all of it."""
    wrap = 1 << 32
    streamed = Outstanding(xids=np.array([1, wrap - 3], dtype=np.int64))
    assert streamed.is_seen_by(snapshot.format(*(wrap + n for n in range(6)))) == is_seen
