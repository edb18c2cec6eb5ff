"""Every benchmark runs to its end at a tiny size and finds a figure for each of its lines."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from bench import (
    base,
    capture,
    decode,
    drain,
    failover,
    growth,
    latency,
    pipeline,
    replay,
    sinks,
    trigger_overhead,
    upsert,
    verify,
)
from bench.debezium import Unavailable
from bench.machine import look_at_machine
from bench.options import Options
from bench.programs.fanout import Run
from bench.report import Report, save, show
from bench.workbench import Workbench
from tailrace.storage import FileStore
from tests.server import Server
from tests.spark.made_log import MadeLog, Table

ROWS = 400


@pytest.fixture
def workbench(postgres: Server, tmp_path: Path) -> Workbench:
    """On the worker's shared server."""
    options = Options(tmp_path, rows=ROWS, rounds=1, quick=True)
    return Workbench(options, postgres, Console(quiet=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        *(base.run, capture.run, latency.run, decode.run, drain.run, growth.run, upsert.run),
        *(verify.run, trigger_overhead.run, sinks.run, replay.run, failover.run),
    ],
    ids=lambda run: str(run.__module__),
)
def test_benchmark_measures_every_line(
    run: Callable[[Workbench], Report], workbench: Workbench
) -> None:
    report = run(workbench)
    assert report.lines
    assert all(line.value is not None and line.value > 0 for line in report.lines)
    _is_presentable(report, workbench)


@pytest.mark.slow
@pytest.mark.spark
def test_pipeline_measures_without_debezium_and_says_so(workbench: Workbench) -> None:
    def missing() -> Path:
        raise Unavailable("there is no network")

    report = pipeline.measure(workbench, missing)
    assert [line.value is None for line in report.lines] == [False, True, True, True]
    assert "debezium's engine was not measured: there is no network" in report.notes
    _is_presentable(report, workbench)


@pytest.mark.slow
@pytest.mark.spark
def test_fanout_measures_streams_that_get_all_of_a_log_that_grows(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    log, table = MadeLog(FileStore(tmp_path / "whole")), Table()
    log.insert(table, 0, 10)
    ready_at = log.end.commit_lsn
    shutil.copytree(tmp_path / "whole", tmp_path / "early")
    log.insert(table, 10, 10)
    wanted = {
        "early_log": str(tmp_path / "early"),
        "whole_log": str(tmp_path / "whole"),
        "sink": {"type": "delta", "mode": "append", "engine": "deltalake"},
        "ready_at": ready_at,
        "end": log.end.commit_lsn,
        "changes": 20,
    }
    run = Run(delta_session, tmp_path / "run", wanted, threading.Event())
    assert min(run.measure(2)) > 0


def _is_presentable(report: Report, workbench: Workbench) -> None:
    options = workbench.options
    machine = look_at_machine(options.directory)
    show(report, machine, options, workbench.console)
    assert save(report, machine, {"postgres": "18"}, options, options.directory).exists()
    assert report.samples
