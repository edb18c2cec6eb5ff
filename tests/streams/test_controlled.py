"""A pipeline under the control schema: what is written in SQL happens to the streams on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from tailrace.control.schema import migrate
from tailrace.control.streams import Status, StreamRow, read_streams
from tailrace.errors import SinkError
from tailrace.log.epochs import newest_fence, take_epoch
from tailrace.log.retention import reader_positions
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.session import connect
from tailrace.sinks import open_sink
from tailrace.sinks.memory import MemorySink
from tailrace.streams import Stream
from tailrace.streams.control import Control
from tailrace.streams.kept_roster import Kept
from tests.capture.running import wait_until
from tests.s3 import make_bucket, s3_server
from tests.server import Database, Server
from tests.spark.made_log import MadeLog, Table
from tests.streams.by_hand import rows_of
from tests.streams.running import PATIENCE_S, BadSink, RunningPipeline, lake_rows, lake_stream
from tests.streams.test_replay import lose

SOURCE: Final = "tailrace_main"
INSERT: Final = "INSERT INTO tailrace.streams (name, tables, sink) VALUES (%s, '{public.*}', %s)"

REPLAY: Final = "UPDATE tailrace.streams SET replay_from_ts = %s WHERE name = %s"


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection]:
    with connect(database.dsn) as conn:
        migrate(conn)
        yield conn


def _row(conn: psycopg.Connection, name: str) -> StreamRow:
    return next(row for row in read_streams(conn, SOURCE) if row.name == name)


def _note(conn: psycopg.Connection, name: str) -> str:
    return str(_row(conn, name).state["replay_note"])


def _control(database: Database, log: MadeLog, make: Callable[[Kept], Stream]) -> Control:
    return Control(
        lambda: LockSession(database.dsn), log.store, source=SOURCE, declared=[], resolve=make
    )


def test_f106_streams_of_sql_begin_pause_resume_stop_and_end_each_on_its_own(
    spark: SparkSession,
    log: MadeLog,
    database: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
) -> None:
    down, gone = MemorySink(), MemorySink()
    bad = BadSink(down, SinkError("the disk is full", retry=True))
    odd = BadSink(gone, SinkError("no such bucket", hint="make it"))

    def make(kept: Kept) -> Stream:
        sinks = {"down": bad, "gone": odd}
        if kept.name in sinks:
            return Stream(kept.name, kept.definition.tables, lambda _: sinks[kept.name])
        return lake_stream(kept.name, tmp_path / "lake")

    def status(name: str, wanted: Status) -> None:
        wait_until(lambda: _row(conn, name).status is wanted, patience_s=PATIENCE_S)

    def delivered() -> bool:
        return lake_rows(tmp_path / "lake") == table.rows

    table = Table()
    log.insert(table, 1, 10)
    with RunningPipeline(spark, log.store, tmp_path, control=_control(database, log, make)) as run:
        for name in ("lake", "down", "gone"):
            conn.execute(INSERT, (name, Jsonb({"type": "memory"})))
        status("lake", Status.HEALTHY)
        wait_until(
            lambda: DeltaTable.is_deltatable(str(tmp_path / "lake/public/orders")) and delivered(),
            patience_s=PATIENCE_S,
        )
        status("down", Status.FAILOVER)
        assert _row(conn, "down").reason == "the disk is full"
        status("gone", Status.STOPPED)
        assert _row(conn, "gone").reason == "no such bucket (make it)"
        conn.execute("UPDATE tailrace.streams SET paused = true WHERE name = 'lake'")
        wait_until(lambda: run.state("lake").delivered is None, patience_s=PATIENCE_S)
        held = lake_rows(tmp_path / "lake")
        log.insert(table, 11, 5)
        # The sink is back: the stream catches up by itself, and past what came meanwhile.
        bad.times = 0
        status("down", Status.HEALTHY)
        wait_until(lambda: len(rows_of(down)) == 15, patience_s=PATIENCE_S)
        assert lake_rows(tmp_path / "lake") == held
        odd.times = 0
        conn.execute("UPDATE tailrace.streams SET paused = false WHERE name IN ('lake', 'gone')")
        wait_until(delivered, patience_s=PATIENCE_S)
        wait_until(lambda: len(rows_of(gone)) == 15, patience_s=PATIENCE_S)
        status("lake", Status.HEALTHY)
        wait_until(lambda: _row(conn, "lake").state["change_count"] == 15, patience_s=PATIENCE_S)
        assert _row(conn, "lake").state["lag_bytes"] == 0
        lose(tmp_path / "lake", "id > 5")
        conn.execute(REPLAY, ("2000-01-01", "lake"))
        wait_until(lambda: _note(conn, "lake").startswith("done: 15"), patience_s=PATIENCE_S)
        assert delivered() and _row(conn, "lake").replay_from_ts is None
        conn.execute("DELETE FROM tailrace.streams WHERE name = 'lake'")
        wait_until(lambda: "lake" not in reader_positions(log.store), patience_s=PATIENCE_S)
    assert run.error is None
    assert delivered()


def test_f106_pipeline_outlives_its_only_stream_and_takes_it_up_when_it_is_resumed(
    spark: SparkSession,
    log: MadeLog,
    database: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
) -> None:
    memory = MemorySink()
    odd = BadSink(memory, SinkError("somebody has altered the table"))
    table = Table()
    log.insert(table, 1, 10)
    control = _control(
        database, log, lambda kept: Stream(kept.name, kept.definition.tables, lambda _: odd)
    )
    conn.execute(INSERT, ("only", Jsonb({"type": "memory"})))
    with RunningPipeline(spark, log.store, tmp_path, control=control) as run:
        reason = "somebody has altered the table"
        wait_until(lambda: _row(conn, "only").reason == reason, patience_s=PATIENCE_S)
        assert _row(conn, "only").status is Status.STOPPED
        log.insert(table, 11, 5)
        odd.times = 0
        conn.execute("UPDATE tailrace.streams SET paused = false WHERE name = 'only'")
        wait_until(lambda: len(rows_of(memory)) == 15, patience_s=PATIENCE_S)
    assert run.error is None


def test_f098_streams_wait_for_a_right_and_for_a_bucket_and_catch_up_by_themselves(
    spark: SparkSession,
    log: MadeLog,
    database: Database,
    postgres: Server,
    conn: psycopg.Connection,
    tmp_path: Path,
) -> None:
    table, bucket = Table(), tmp_path.name.replace("_", "-")[-60:].strip("-")
    log.insert(table, 1, 10)
    with (
        s3_server() as endpoint,
        postgres.database() as place,
        place.connect() as target,
    ):
        target.execute("CREATE ROLE clerk LOGIN")
        sinks: dict[str, dict[str, object]] = {
            "copy": {"type": "postgres", "dsn": make_conninfo(place.dsn, user="clerk")},
            "files": {"type": "parquet", "path": f"s3://{bucket}/changes"},
        }

        def make(kept: Kept) -> Stream:
            tables, told = kept.definition.tables, sinks[kept.name]
            return Stream(kept.name, tables, lambda _: open_sink(told))

        def comes(name: str, status: Status, *words: str) -> None:
            def is_so() -> bool:
                row = _row(conn, name)
                return row.status is status and all(word in (row.reason or "") for word in words)

            wait_until(is_so, patience_s=PATIENCE_S)

        for name in sinks:
            conn.execute(INSERT, (name, Jsonb({"type": "memory"})))
        with RunningPipeline(
            spark, log.store, tmp_path, control=_control(database, log, make)
        ) as run:
            comes("copy", Status.FAILOVER, "42501", "tailrace check", "goes on by itself")
            comes("files", Status.FAILOVER, "NoSuchBucket", "make the bucket", "goes on by itself")
            rights = sql.SQL(
                "GRANT CREATE ON DATABASE {} TO clerk;GRANT CREATE, USAGE ON SCHEMA public TO clerk"
            )
            target.execute(rights.format(sql.Identifier(place.name)))
            make_bucket(endpoint, bucket)
            run.wait_for(log.end, *sinks)
            target.execute("ALTER ROLE clerk NOLOGIN")
            target.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'"
            )
            log.insert(table, 11, 5)
            comes("copy", Status.FAILOVER, "does not let role clerk in", "goes on by itself")
            target.execute("ALTER ROLE clerk LOGIN")
            run.wait_for(log.end, *sinks)
            for name in sinks:
                comes(name, Status.HEALTHY)
            assert target.execute("SELECT count(*) FROM orders").fetchone() == (15,)
        assert run.error is None


def test_f082_a_stream_that_another_takes_is_left_to_it_and_taken_back_with_the_lock(
    spark: SparkSession,
    log: MadeLog,
    database: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
) -> None:
    table = Table()
    log.insert(table, 1, 10)
    lake = tmp_path / "lake"
    control = _control(database, log, lambda kept: lake_stream(kept.name, lake))
    conn.execute(INSERT, ("lake", Jsonb({"type": "memory"})))
    with RunningPipeline(spark, log.store, tmp_path, control=control):
        path = str(lake / "public" / "orders")
        wait_until(
            lambda: DeltaTable.is_deltatable(path) and lake_rows(lake) == table.rows,
            patience_s=PATIENCE_S,
        )
        rival = take_epoch(log.store, "lake", node="rival")
        log.insert(table, 11, 5)
        # Fenced at its next batch; it holds the lock, so it takes the stream back.
        wait_until(lambda: lake_rows(lake) == table.rows, patience_s=PATIENCE_S)
        assert newest_fence(log.store, "lake").epoch == rival.epoch + 1
