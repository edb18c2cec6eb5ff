"""`tailrace run` and `pipeline`: from Postgres to the lake, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString
from urllib.request import urlopen

import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.cli.gauges import LakeRows
from tailrace.log import Base, BaseOrigin
from tailrace.log.bases import put_base
from tailrace.model import Lsn
from tests.capture.running import wait_until
from tests.cli.processes import await_none, working_on
from tests.cli.project import TIMEOUT_S, Project
from tests.decode import wire
from tests.log.making import SOURCE, START, Wal, begin_writer, shape
from tests.proxy import Pooler
from tests.server import Database, Server

STREAMS = 'streams: {lake: {tables: ["public.*"], sink: {type: delta, path: lake}}}'


def await_rows(table: Path, count: int) -> None:
    rows, deadline = LakeRows(str(table)), time.monotonic() + TIMEOUT_S
    while rows.count() != count:
        assert time.monotonic() < deadline, rows.count()
        time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def await_metrics(port: int, line: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while line not in (text := urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()):
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


@pytest.mark.parametrize(("command", "mode"), [("pipeline", "wal"), ("capture", "trigger")])
def test_f083_commands_that_lead_refuse_a_pooler_with_a_hint(
    project: Project, database: Database, command: str, mode: str
) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with Pooler(int(conninfo_to_dict(database.tcp_dsn)["port"] or 0)) as pooler:
        dsn = make_conninfo(database.tcp_dsn, port=pooler.port)
        project.configure(dsn, mode=mode, more=STREAMS)
        ended = project.run(command)
    assert ended.code == 2, ended.err
    assert "connection pooler stands before postgres" in ended.err
    assert "point source.dsn at postgres itself" in ended.err


@pytest.mark.slow
def test_changes_reach_the_lake(project: Project, database: Database) -> None:
    port = free_port()
    project.configure(database.dsn, more=f"{STREAMS}\npipeline: {{metrics_port: {port}}}")
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with project.running("run") as run:
            run.await_line("streaming slot=")
            for number in (1, 2, 3):
                admin.execute("INSERT INTO t VALUES (%s)", [number])
                project.await_captured(admin)
            run.await_line("stream started stream=lake")
            await_rows(project.directory / "lake" / "public" / "t", 3)
            await_metrics(
                port, 'tailrace_stream_status{source="test",status="healthy",stream="lake"} 1'
            )
            await_metrics(port, 'tailrace_stream_changes_total{source="test",stream="lake"} 3')
            # As the manager of a service does it: all at once, Spark's own processes among them.
            for pid, _ in working_on(project.directory):
                os.kill(pid, signal.SIGTERM)
            ended = run.wait()
            assert ended.code == 0, ended.err
            assert "stopped slot=" in ended.err and "error" not in ended.err
        assert not working_on(project.directory)


@pytest.mark.slow
def test_f106_capture_goes_on_beside_the_only_stream_that_stopped_and_sql_resumes_it(
    project: Project, database: Database, postgres: Server
) -> None:
    status: LiteralString = "SELECT status, reason FROM tailrace.streams"
    confirmed: LiteralString = "SELECT confirmed_flush_lsn FROM pg_replication_slots"

    def comes(conn: Connection, query: LiteralString, is_so: Callable[[Any], bool]) -> None:
        wait_until(lambda: is_so(conn.execute(query).fetchone()), patience_s=TIMEOUT_S)

    def is_past(end: Lsn) -> Callable[[Any], bool]:
        return lambda row: Lsn.parse(row[0]) >= end

    with database.connect() as admin, postgres.database() as place, place.connect() as target:
        sink = json.dumps({"type": "postgres", "dsn": place.dsn})
        streams = f'streams: {{copy: {{tables: ["public.*"], sink: {sink}}}}}'
        project.configure(database.dsn, more=streams)
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        target.execute("CREATE TABLE t (somebody text)")
        with project.running("run") as run:
            run.await_line("stream stopped stream=copy")
            comes(admin, status, lambda row: row[0] == "stopped" and "not made by" in row[1])
            for number in range(5):
                admin.execute("INSERT INTO t VALUES (%s)", [number])
                end = project.await_captured(admin)
                comes(admin, confirmed, is_past(end))
            assert run.process.poll() is None
            target.execute("DROP TABLE t")
            admin.execute("UPDATE tailrace.streams SET paused = false WHERE name = 'copy'")
            comes(admin, status, lambda row: row == ("healthy", None))
            comes(target, "SELECT to_regclass('t')", lambda row: row[0] is not None)
            comes(target, "SELECT count(*), sum(id) FROM t", lambda row: row == (5, 10))
            assert run.stop().code == 0


@pytest.mark.slow
def test_a_damaged_segment_ends_the_pipeline_with_its_name(project: Project) -> None:
    project.configure("postgresql://ann@db/shop", more=STREAMS)
    writer, wal, table = begin_writer(project.store), Wal(), shape()
    frame = wire.relation(table)
    put_base(project.store, Base(SOURCE, table, frame, START, 0, BaseOrigin.EMPTY))
    for _ in range(3):
        writer.append(wal.rows(table))
    segment = sorted((project.directory / "log" / "segments").glob("*.arrow"))[2]
    data = bytearray(segment.read_bytes())
    data[len(data) * 2 // 3] ^= 0x01
    segment.write_bytes(data)
    with project.running("pipeline") as pipeline:
        code, error, _ = pipeline.wait().failure
    assert code == 1
    assert segment.name in error
    assert not working_on(project.directory)


@pytest.mark.slow
def test_a_pipeline_that_has_nothing_to_do_ends_when_its_spark_is_killed(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn, more="streams: {}")
    begin_writer(project.store)
    with project.running("pipeline") as pipeline:
        pipeline.await_line("spark started")
        for pid, line in working_on(project.directory):
            if " pipeline " not in line:
                os.kill(pid, signal.SIGKILL)
        code, error, _ = pipeline.wait().failure
    assert (code, error) == (1, "spark has gone away")


def test_a_child_that_fails_ends_all_with_its_words_and_its_status(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn, tables=["public.missing"], more=STREAMS)
    with project.running("run") as run:
        ended = run.wait()
    code, error, hint = ended.failure
    assert (code, error) == (2, "public.missing matches no table")
    assert "make the table" in hint
    assert not working_on(project.directory)


def test_a_child_that_is_killed_is_told_of(project: Project, database: Database) -> None:
    project.configure(database.dsn, more="streams: {}")
    with project.running("run") as run:
        run.await_line("streaming slot=")
        (capture,) = (pid for pid, line in working_on(project.directory) if " capture " in line)
        os.kill(capture, signal.SIGKILL)
        code, error, hint = run.wait().failure
    assert (code, error) == (1, "capture was killed by SIGKILL")
    assert "memory" in hint


def test_first_stream_that_sql_declares_is_delivered(project: Project, database: Database) -> None:
    project.configure(database.dsn, more="streams: {}")
    with database.connect() as admin, project.running("run") as run:
        run.await_line("streaming slot=")
        assert not any(" pipeline " in line for _, line in working_on(project.directory))
        sink = '{"type": "parquet", "path": "./changes"}'
        admin.execute(
            "INSERT INTO tailrace.streams (name, tables, sink) VALUES ('first', '{public.*}', %s)",
            (sink,),
        )
        run.await_line("starting spark")
        run.process.kill()
        await_none(project.directory)


def test_nothing_is_left_when_it_is_killed(project: Project, database: Database) -> None:
    project.configure(database.dsn, more=STREAMS)
    with project.running("run") as run:
        run.await_line("starting spark")
        run.process.kill()
        await_none(project.directory)


@pytest.mark.parametrize(
    ("arguments", "more", "words", "cure"),
    [
        (["--stream", "lkae"], STREAMS, "there is no stream lkae", "one of: lake"),
        ([], "streams: {}", "there is no stream to deliver", "streams:"),
    ],
)
def test_a_stream_that_is_not_configured_is_wrong_use(
    project: Project, arguments: list[str], more: str, words: str, cure: str
) -> None:
    project.configure("postgresql://ann@db/shop", more=more)
    code, error, hint = project.run("pipeline", *arguments).failure
    assert (code, error) == (2, words)
    assert cure in hint
