"""`growth`: the cost of a row must not grow with the backlog it is part of.

Capture of a backlog beside one of a tenth of it, in a database of its own; and one decode of all
rows beside one of a tenth.
"""

from __future__ import annotations

import shutil
from typing import Final

from bench.capture import prepare
from bench.decode import captured_log, run_decode
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.sides import Reading, run_capture
from bench.workbench import Workbench

FACTOR: Final = 10
GROWTH_MAX: Final = 1.1
_TRANSPORT: Final = "socket"


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = workbench.options.rows
    readings: dict[str, list[Reading]] = {
        what: [] for what in ("capture", "capture tenth", "decode", "decode tenth")
    }
    with workbench.source("growth_tenth") as small, workbench.source("growth") as large:
        backlogs = {}
        for source, count in ((small, rows // FACTOR), (large, rows)):
            prepare(workbench, source, count)
            backlogs[source] = source.survey()
        log = captured_log(large, backlogs[large])
        for number in range(workbench.options.rounds):
            readings["capture"].append(run_capture(large, backlogs[large], _TRANSPORT))
            readings["capture tenth"].append(run_capture(small, backlogs[small], _TRANSPORT))
            readings["decode"].append(run_decode(large, log, rows, call_changes=0))
            readings["decode tenth"].append(run_decode(large, log, rows // FACTOR, call_changes=0))
            costs = ", ".join(f"{what} {_cost(done[-1]):.2f}" for what, done in readings.items())
            workbench.say(f"round {number + 1} µs a row: {costs}")
        shutil.rmtree(log)
    return Report(
        "growth",
        [_line(what, readings, rows) for what in ("capture", "decode")],
        [reading.sample(what=what) for what, done in readings.items() for reading in done],
    )


def _cost(reading: Reading) -> float:
    return reading.seconds / reading.changes * 1e6


def _line(what: str, readings: dict[str, list[Reading]], rows: int) -> Line:
    return ratio_line(
        f"{what}, cost of a row among {shown(rows, 'rows')}",
        "µs",
        [_cost(reading) for reading in readings[what]],
        [_cost(reading) for reading in readings[f"{what} tenth"]],
        Bound(GROWTH_MAX, at_most=True),
        beside_name=f"among {shown(rows // FACTOR, 'rows')}",
    )
