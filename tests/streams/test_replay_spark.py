"""Replays on Spark, beside the stream: noticed, carried out, and gone on with after a restart."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.streams import Stream
from tailrace.streams.replay import Replays, Request, run
from tailrace.streams.replay.pace import Pace
from tests.capture.running import wait_until
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import time_of
from tests.streams.running import PATIENCE_S, RunningPipeline, lake_rows, lake_stream
from tests.streams.test_replay import lose, offsets

ROWS = 40


def ask(replays: Replays, stream: str, *, rate: int = 0) -> Request:
    request = Request.new(stream, time_of(1), time_of(2), now=datetime.now(UTC), rate=rate)
    replays.ask(request)
    return request


class Halting(Pace):
    """After its first batch a replay that has a rate waits until its pipeline ends."""

    def passed(self, change_count: int) -> None:
        if self._rate:
            self._wait(PATIENCE_S)


def test_f081_f105_replays_run_beside_the_stream_and_outlive_the_pipeline(
    spark: SparkSession, log: MadeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, lake, files = Table(), tmp_path / "lake", tmp_path / "files"
    log.insert(table, 1, ROWS)
    log.commit(table, *(table.update(key, key, "then", None) for key in range(1, ROWS + 1)))
    log.commit(table, table.update(1, 1, "now", None))
    streams: list[Stream] = [lake_stream("lake", lake), lake_stream("files", files, "append")]
    replays = Replays(log.store)
    with (
        monkeypatch.context() as patched,
        RunningPipeline(spark, log.store, tmp_path, *streams) as at_work,
    ):
        patched.setattr(run, "Pace", Halting)
        at_work.wait_for(log.end, "lake", "files")
        lose(lake, "id > 20")
        ask(replays, "files", rate=ROWS // 2)
        rows = ask(replays, "lake")
        wait_until(lambda: replays.outcome(rows) is not None, patience_s=PATIENCE_S)
        assert lake_rows(lake) == table.rows
        log.commit(table, table.update(2, 2, "live", None))
        at_work.wait_for(log.end, "lake", "files")
        wait_until(lambda: bool(offsets(files, "replay")), patience_s=PATIENCE_S)
        assert at_work.state("files").replaying
    progress = replays.progress("files")
    assert progress is not None and progress.change_count == ROWS // 2
    with RunningPipeline(spark, log.store, tmp_path, *streams):
        wait_until(lambda: replays.current("files") is None, patience_s=PATIENCE_S)
    outcome = replays.last("files")
    assert outcome is not None and (outcome.state, outcome.change_count) == ("done", 2 * ROWS)
    assert offsets(files, "replay") == offsets(files, "wal")[: 2 * ROWS]
    assert lake_rows(lake) == table.rows
