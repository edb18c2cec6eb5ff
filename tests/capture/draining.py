"""Drains beside a test, or in a process: `python -m tests.capture.draining DSN URL`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg
from psycopg import sql

from tailrace.capture.buffers import copying
from tailrace.capture.buffers.shapes import BufferShapes, ask_for_base
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.capture.drains import taking
from tailrace.capture.drains.drain import Drainer
from tailrace.capture.drains.slot_begin import begin_slot
from tailrace.log import Reader, SourceIdentity, Tip, Writer, put_genesis, recover_tip, segment
from tailrace.model import Lsn, Offset
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import read_server
from tailrace.postgres.snapshot import Patience
from tailrace.storage import Store, open_store
from tests.capture.tracked import buffer_of
from tests.log.making import decoded_tables, no_catalog

SOURCE = "tailrace_main"


def begin_log(conn: psycopg.Connection, store: Store) -> Tip:
    """Begin a log without a slot, or find its end."""
    tip = recover_tip(store)
    if tip is not None:
        return tip
    server = read_server(conn)
    row = conn.execute(
        "SELECT pg_logical_emit_message(true, 'tailrace.drain', '')::text"
    ).fetchone()
    assert row is not None
    source = SourceIdentity(str(server.system_id), server.timeline)
    note = {"slot": SOURCE, "database": server.database, "mode": "drain"}
    return put_genesis(store, source, Lsn.parse(row[0]), writer_id="genesis", note=note)


@contextmanager
def drainer(conn: psycopg.Connection, store: Store, writer_id: str = "one") -> Iterator[Drainer]:
    """As the leader of the log, from its end on."""
    dsn = conn.info.dsn
    tip = begin_log(conn, store)
    writer = Writer(store, tip, writer_id=writer_id, describe=no_catalog)
    translator = Translator(BufferShapes(dsn), want_base=ask_for_base(dsn, store))
    with Drainer(dsn, store, TranslatingWriter(writer, translator), source=SOURCE) as drains:
        yield drains


def drain_all(conn: psycopg.Connection, store: Store, *, deletes: bool = False) -> None:
    """One drain, by a leader of its own."""
    with drainer(conn, store) as drains:
        drains.drain(lambda: None)
        if deletes:
            drains.delete(lambda: None)


def logged(store: Store) -> list[dict[str, Any]]:
    """Every change in the log, decoded, in order; each has the number of its buffered row."""
    begin = Offset.whole(Reader(store).begin())
    rows = [row for changes in decoded_tables(store, begin) for row in changes.rows.to_pylist()]
    return sorted(rows, key=lambda row: (row["_commit_lsn"], row["_ordinal"]))


def folded(store: Store, key: str = "id") -> dict[Any, dict[str, Any]]:
    """The rows that the log folds to; every change must go on from the one before it."""
    rows: dict[Any, dict[str, Any]] = {}
    for change in logged(store):
        own = {name: value for name, value in change.items() if not name.startswith("_")}
        before = change["_before"] or {}
        if change["_op"] == "truncate":
            rows.clear()
        elif change["_op"] == "delete":
            assert rows.pop(before[key], None) is not None, f"nothing to delete: {change}"
        elif change["_op"] == "insert":
            assert own[key] not in rows, f"inserted twice: {change}"
            rows[own[key]] = own
        else:
            assert rows.pop(before.get(key, own[key]), None) is not None, f"no row: {change}"
            rows[own[key]] = own
    return rows


def numbers(conn: psycopg.Connection, store: Store, table: str = "public.t") -> list[int]:
    """The number of every buffered row in the log, in order, as if the buffer of the only table
    had begun with 1.
    """
    query = "SELECT seqstart FROM pg_sequence WHERE seqrelid = %s::regclass"
    row = conn.execute(query, [f"{buffer_of(conn, table)}_seq_seq"]).fetchone()
    assert row is not None
    reader = Reader(store)
    found: list[int] = []
    for link in reader.walk(Offset.whole(reader.begin())):
        parts = [segment.read(store, part.key).frames for part in link.header.parts]
        for frames in [*parts, reader.read(link).frames]:
            found += (frames.buffer_seqs[frames.is_buffered] - row[0] + 1).tolist()
    return found


def source_rows(conn: psycopg.Connection, table: str = "public.t") -> dict[Any, dict[str, Any]]:
    """What the table holds."""
    name = sql.Identifier(*table.split("."))
    cursor = conn.execute(sql.SQL("SELECT * FROM {}").format(name))
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return {row["id"]: row for row in rows}


@contextmanager
def writers(dsn: str, count: int) -> Iterator[None]:
    """Some that write the same keys, with savepoints, key changes, long and short transactions."""
    stop = threading.Event()

    def write(random: Random) -> None:
        with psycopg.connect(dsn) as mine:
            while not stop.is_set():
                for _ in range(random.randint(1, 5)):
                    key = random.randrange(30)
                    with mine.transaction(force_rollback=random.random() < 0.2):
                        mine.execute(
                            "INSERT INTO t VALUES (%s, 'a') ON CONFLICT (id) DO UPDATE SET v = %s",
                            [key, str(random.random())],
                        )
                    if random.random() < 0.3:
                        mine.execute(
                            "UPDATE t SET id = id + 30 WHERE id = %s "
                            "AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
                            [key, key + 30],
                        )
                    if random.random() < 0.3:
                        mine.execute("DELETE FROM t WHERE id = %s", [random.randrange(30, 60)])
                mine.rollback() if random.random() < 0.1 else mine.commit()

    def keep_writing(seed: int) -> None:
        random = Random(seed)
        while not stop.is_set():
            try:
                write(random)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                continue

    threads = [threading.Thread(target=keep_writing, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


@contextmanager
def leading(dsn: str, slot: str = SOURCE) -> Iterator[int]:
    """The backend of one who leads meanwhile."""
    session = LockSession(dsn)
    assert session.try_lock(slot)
    try:
        yield session.pid
    finally:
        session.close()


def main(dsn: str, url: str, then: str = "") -> None:
    """Two drains, and what may be deleted after each; or the beginning of a slot."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        store = open_store(url)
        with drainer(conn, store, writer_id="process") as drains:
            if then == "parts":
                for module, size in ((taking, "PART_BYTES"), (copying, "BLOCK_BYTES")):
                    setattr(module, size, 1 << 10)
            if then == "slot":
                patience = Patience(5_000, 120.0, say=lambda _: None, go_on=lambda: None)
                names = SourceNames.of("main")
                with leading(dsn) as pid:
                    begin_slot(dsn, drains, names, patience, leader_pid=pid)
                return
            for _ in range(2):
                drains.drain(lambda: None)
                drains.delete(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
