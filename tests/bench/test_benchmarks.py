"""Every benchmark runs to its end at a tiny size and finds a figure for each of its lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from bench import (
    base,
    capture,
    decode,
    drain,
    failover,
    fanout,
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
from bench.report import Report, save, show
from bench.workbench import Workbench
from tests.server import Server

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
        *(verify.run, trigger_overhead.run, sinks.run, replay.run, failover.run, fanout.run),
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


def _is_presentable(report: Report, workbench: Workbench) -> None:
    options = workbench.options
    machine = look_at_machine(options.directory)
    show(report, machine, options, workbench.console)
    assert save(report, machine, {"postgres": "18"}, options, options.directory).exists()
    assert report.samples
