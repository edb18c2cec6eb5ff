"""A target that does not answer any more: the stream says so, and goes on when it does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.columns import Mode
from tailrace.sinks.postgres import PostgresOptions, PostgresSink
from tests.capture.running import wait_until
from tests.server import Database
from tests.spark.made_log import MadeLog, Table
from tests.streams.running import PATIENCE_S, RunningPipeline, stream

_WRITING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND state = 'idle in transaction'"
)


def test_f097_stream_waits_for_a_stopped_target_as_for_one_that_is_down_and_then_goes_on(
    spark: SparkSession,
    log: MadeLog,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    table, held = Table(), list[int]()

    def stop(step: str) -> None:
        if step == "postgres.after_rows" and not held:
            with database.connect() as conn:
                held.extend(pid for (pid,) in conn.execute(_WRITING))
            for pid in held:
                os.kill(pid, signal.SIGSTOP)

    def rows() -> int:
        with database.connect() as conn:
            found = conn.execute("SELECT to_regclass('public.orders')").fetchone()
            if found == (None,):
                return 0
            counted = conn.execute("SELECT count(*) FROM public.orders").fetchone()
            assert counted is not None
            return int(counted[0])

    log.insert(table, 1, 10)
    sink = PostgresSink(PostgresOptions(database.dsn, mode=Mode.APPEND, answer_s=2.0))
    with RunningPipeline(spark, log.store, tmp_path, stream("copy", sink)) as at_work:
        wait_until(lambda: rows() == 10, patience_s=PATIENCE_S)
        monkeypatch.setattr("tailrace.sinks.postgres.sink.failpoint", stop)
        try:
            log.insert(table, 11, 5)
            wait_until(
                lambda: "not answered" in str(at_work.state("copy").error), patience_s=PATIENCE_S
            )
            assert not at_work.state("copy").is_stopped and rows() == 10
        finally:
            for pid in held:
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: at_work.state("copy").error is None, patience_s=PATIENCE_S)
        wait_until(lambda: rows() == 15, patience_s=PATIENCE_S)
    assert at_work.error is None and held and rows() == 15, "each change once"
