"""`fanout`: what five streams on one log cost, beside one.

Every stream delivers every change of four tables to Delta tables of its own, so nothing that a sink
does is shared. Both sides run in one pipeline process, in turns; the log is there already, so
Postgres and capture, which are the same for both, take no part.

What it costs is the time until every stream has everything, on the same cores. The processors' time
is told beside it, without a bound: five sinks write five times as much, and all that could be
shared is decoding, which is the smaller part of what one stream takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench.child import Child
from bench.pipeline import CORES, prepare_shop
from bench.report import Bound, Line, Report, ratio_line
from bench.sides import Reading
from bench.source import Backlog, Source
from bench.workbench import Workbench
from bench.workload import SHOP_TABLES

STREAM_COUNT: Final = 5
COST_MAX: Final = 3.0
WARM_UPS: Final = 2
"""Rounds until the JVM has compiled what it needs: those before take up to a third more."""
_SINK: Final = {"type": "delta", "mode": "append"}


def run(workbench: Workbench) -> Report:
    """Measure; in a hurry two streams, and without rounds that only warm up."""
    options = workbench.options
    changes, warm_ups = options.rows // 2, 0 if options.quick else WARM_UPS
    several = 2 if options.quick else STREAM_COUNT
    readings: dict[int, list[Reading]] = {1: [], several: []}
    with workbench.source("fanout") as source:
        workbench.say(f"writing a log of {changes:,} changes")
        warm, backlog = prepare_shop(source, changes)
        task = {
            "early_log": str(source.new_log()),
            "whole_log": str(_whole_log(source, backlog)),
            "directory": str(source.directory / "streams"),
            "cores": CORES,
            "sink": _SINK,
            "ready_at": int(warm.end),
            "end": int(backlog.end),
            "changes": warm.changes + backlog.changes,
            "rounds": options.rounds + warm_ups,
            "stream_counts": list(readings),
        }
        with Child("fanout", task, log=source.directory / "fanout.log") as child:
            for event in child.events_until("done"):
                if event["event"] == "run" and event["round"] >= warm_ups:
                    reading = _reading(event, backlog)
                    readings[event["streams"]].append(reading)
                    workbench.say(
                        f"{reading.side}: {reading.seconds:.2f} s, {reading.cpu_s:.2f} s of CPU"
                    )
    seconds = {
        "time": [[each.seconds for each in side] for side in readings.values()],
        "CPU": [[each.cpu_s for each in side] for side in readings.values()],
    }
    return Report(
        "fanout",
        [_line(several, what, each, backlog) for what, each in seconds.items()],
        [each.sample() for side in readings.values() for each in side],
        {"changes": backlog.changes, "tables": len(SHOP_TABLES), "streams": several, "sink": _SINK},
    )


def _whole_log(source: Source, backlog: Backlog) -> Path:
    log = source.new_log()
    with source.capture("socket", backlog.changes, log=log) as child:
        child.event("done")
    return log


def _reading(event: dict[str, Any], backlog: Backlog) -> Reading:
    side = f"{event['streams']} streams"
    return Reading(side, "log", backlog.changes, event["seconds"], event["cpu_s"])


def _line(streams: int, what: str, seconds: list[list[float]], backlog: Backlog) -> Line:
    one, several = ([each * 1e6 / backlog.changes for each in side] for side in seconds)
    return ratio_line(
        f"{streams} streams, {what} per change",
        "µs",
        several,
        one,
        Bound(COST_MAX, at_most=True) if what == "time" else None,
        beside_name="one stream",
    )
