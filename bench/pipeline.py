"""`pipeline`: inserts and updates of four tables, from the WAL to verified Delta tables on two
cores, beside Debezium's engine merely reading the same slot.

Capture and pipeline are processes of their own, as under `tailrace run`. The pipeline is warm and
idle when capture starts; the clock runs from there until the last change is in its table. Then all
tables are compared with the source, row by row.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.child import Child, ProgramFailed
from bench.debezium import Unavailable, install, run_debezium
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.sides import Reading, run_capture
from bench.source import Backlog, Source
from bench.workbench import Workbench
from bench.workload import SHOP_CHANGES_PER_TRANSACTION, SHOP_TABLES, fill_shop, make_shop
from tailrace.verify.at_rest import compare_at_rest

CORES: Final = 2
"""For everything together: the server, capture, Spark, and the engine beside them."""

CAPTURE_SHARE_AIM: Final = 0.5
CAPTURE_FLOOR: Final = 4.0
MEMORY_SHARE_MAX: Final = 0.25
PIPELINE_FLOOR: Final = 1.5
_TRANSPORT: Final = "tcp"
"""The only one that Debezium's driver has."""

_WARM_UP_TRANSACTIONS: Final = 500
"""More would leave so many segments that capture merges them while it is measured."""


@dataclass(slots=True)
class _Rounds:
    """What was measured; `missing` says why Debezium's engine could not be."""

    pipeline: list[Reading] = field(default_factory=list)
    capture: list[Reading] = field(default_factory=list)
    debezium: list[Reading] = field(default_factory=list)
    missing: str = ""


def run(workbench: Workbench) -> Report:
    """Measure, with Debezium's engine if it can be had."""
    return measure(workbench, install)


def measure(workbench: Workbench, install_debezium: Callable[[], Path]) -> Report:
    """Measure; `install_debezium` gives the Python that has the engine, or raises Unavailable."""
    changes = workbench.options.rows // 2
    rounds = _Rounds()
    with workbench.source("pipeline") as source:
        workbench.say(f"writing a backlog of {changes:,} changes")
        warm, backlog = prepare_shop(source, changes)
        for number in range(workbench.options.rounds):
            rounds.capture.append(run_capture(source, backlog, _TRANSPORT))
            rounds.pipeline.append(_run_pipeline(source, warm, backlog))
            if not rounds.missing:
                _try_debezium(workbench, source, backlog, install_debezium, rounds)
            last = [done[-1] for done in (rounds.capture, rounds.pipeline, rounds.debezium) if done]
            rates = ", ".join(f"{each.side} {shown(each.rate, 'changes/s')}" for each in last)
            workbench.say(f"round {number + 1} {rates}")
    readings = (*rounds.pipeline, *rounds.capture, *rounds.debezium)
    return Report(
        "pipeline",
        _lines(rounds),
        [reading.sample() for reading in readings],
        {"changes": backlog.changes, "tables": len(SHOP_TABLES), "cores": CORES},
        notes=[
            "every round's tables were compared with the source, row by row, and are equal",
            f"pipeline: driver, JVM and workers had at most {_peak_memory(rounds.pipeline)}",
            f"the share of the capture rate is an aim ({CAPTURE_SHARE_AIM}x), not a floor",
            *([f"debezium's engine was not measured: {rounds.missing}"] if rounds.missing else []),
        ],
    )


def _try_debezium(
    workbench: Workbench,
    source: Source,
    backlog: Backlog,
    install_debezium: Callable[[], Path],
    rounds: _Rounds,
) -> None:
    """Run the engine once; where it cannot be had or does not work, that is noted, once."""
    try:
        rounds.debezium.append(run_debezium(source, backlog, install_debezium()))
    except (Unavailable, ProgramFailed) as reason:
        workbench.say(f"debezium's engine cannot be measured here: {reason}")
        rounds.missing = str(reason)
        rounds.debezium.clear()


def prepare_shop(source: Source, changes: int) -> tuple[Backlog, Backlog]:
    """A few changes that are already in the log, to warm up with, and the backlog after them."""
    last = _WARM_UP_TRANSACTIONS + max(1, changes // SHOP_CHANGES_PER_TRANSACTION)
    with source.connect() as conn:
        make_shop(conn)
        source.begin()
        fill_shop(conn, 0, _WARM_UP_TRANSACTIONS - 1)
        warm = source.survey()
        source.begin(changes=warm.changes)
        fill_shop(conn, _WARM_UP_TRANSACTIONS, last)
    return warm, source.survey()


@contextmanager
def delivered(
    source: Source, warm: Backlog, backlog: Backlog, *, mode: str = "upsert"
) -> Iterator[tuple[Path, Reading]]:
    """The pipeline at rest after the backlog, its log, and what it took from capture's start to
    the last table. Upserted tables are compared with the source in the end.
    """
    log, lake = source.new_log(), source.directory / "lake"
    work_dir = source.directory / "spark"
    task = {
        "log": log.as_uri(),
        "lake": str(lake),
        "mode": mode,
        "work_dir": str(work_dir),
        "tables": ["public.*"],
        "cores": CORES,
        "ready_at": int(warm.end),
        "end": int(backlog.end),
    }
    try:
        with Child("pipeline", task, log=source.directory / "pipeline.log") as pipeline:
            pipeline.event("ready")
            with source.capture(_TRANSPORT, backlog.changes, log=log) as capture:
                began = capture.event("streaming")["at"]
                done = pipeline.event("done")
            yield (
                log,
                Reading(
                    "pipeline",
                    _TRANSPORT,
                    backlog.changes,
                    done["at"] - began,
                    memory_mb=done["memory_mb"],
                    segments=done["batches"],
                ),
            )
        if mode == "upsert":
            _verify_shop(source, lake)
    finally:
        for place in (log, lake, work_dir):
            shutil.rmtree(place, ignore_errors=True)


def _run_pipeline(source: Source, warm: Backlog, backlog: Backlog) -> Reading:
    with delivered(source, warm, backlog) as (_, reading):
        return reading


def _verify_shop(source: Source, lake: Path) -> None:
    """Compare source and lake, row by row; raises ProgramFailed."""
    tables = [f"public.{table}" for table in SHOP_TABLES]
    for result in compare_at_rest(source.database.dsn, str(lake), tables):
        if not result.equal:
            raise ProgramFailed(
                f"{result.table} differs: {result.source_rows} rows in the source, "
                f"{result.lake_rows} in the lake {result.problem}"
            )


def _lines(rounds: _Rounds) -> list[Line]:
    pipeline = [reading.rate for reading in rounds.pipeline]
    capture = [reading.rate for reading in rounds.capture]
    share = ratio_line(
        "source to delta, 2 cores", "changes/s", pipeline, capture, None, beside_name="capture"
    )
    comparisons: list[tuple[str, str, Callable[[Reading], float], list[Reading], Bound]] = [
        ("capture", "changes/s", _rate, rounds.capture, Bound(CAPTURE_FLOOR)),
        (
            "capture, peak memory",
            "MB",
            _memory,
            rounds.capture,
            Bound(MEMORY_SHARE_MAX, at_most=True),
        ),
        ("source to delta, 2 cores", "changes/s", _rate, rounds.pipeline, Bound(PIPELINE_FLOOR)),
    ]
    return [share, *(_debezium_line(*comparison, rounds) for comparison in comparisons)]


def _debezium_line(
    what: str,
    unit: str,
    figure: Callable[[Reading], float],
    ours: list[Reading],
    bound: Bound,
    rounds: _Rounds,
) -> Line:
    name = "debezium reading"
    mine = [figure(reading) for reading in ours]
    if rounds.missing:
        return Line(what, shown(statistics.median(mine), unit), name, None, bound)
    theirs = [figure(reading) for reading in rounds.debezium]
    return ratio_line(what, unit, mine, theirs, bound, beside_name=name)


def _rate(reading: Reading) -> float:
    return reading.rate


def _memory(reading: Reading) -> float:
    return reading.memory_mb


def _peak_memory(readings: list[Reading]) -> str:
    return shown(max(reading.memory_mb for reading in readings), "MB")
