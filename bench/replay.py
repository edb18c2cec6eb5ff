"""`replay`: everything that the pipeline has delivered, delivered once more, beside what the
pipeline itself took for it.

Capture and pipeline are processes of their own, as under `tailrace run`. When the last change is in
its table, a replay of all of them is asked for; the clock runs from when the pipeline takes it up,
within a second, until it is over. To tables of rows and to tables of changes.
"""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.child import Child, ProgramFailed
from bench.pipeline import CORES, prepare_shop, verify_shop
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.sides import Reading
from bench.source import Backlog, Source
from bench.workbench import Workbench
from bench.workload import SHOP_TABLES
from tailrace.model import Offset
from tailrace.storage import open_store
from tailrace.streams.replay import Replays, Request

REPLAY_FLOOR: Final = 2.0
MODES: Final = ("upsert", "append")
_TRANSPORT: Final = "tcp"
_STREAM: Final = "lake"
_POLL_S: Final = 0.02
_PATIENCE_S: Final = 3600.0


def run(workbench: Workbench) -> Report:
    """Measure both modes; in a hurry only that of rows."""
    changes = workbench.options.rows // 2
    modes = MODES[:1] if workbench.options.quick else MODES
    readings: dict[str, list[tuple[Reading, Reading]]] = {mode: [] for mode in modes}
    with workbench.source("replay") as source:
        workbench.say(f"writing a backlog of {changes:,} changes")
        warm, backlog = prepare_shop(source, changes)
        for number in range(workbench.options.rounds):
            for mode in modes:
                live, again = _run_both(source, warm, backlog, mode)
                readings[mode].append((live, again))
                rates = f"live {shown(live.rate, 'changes/s')}, replay {shown(again.rate, '')}"
                workbench.say(f"round {number + 1} {mode}: {rates}")
    return Report(
        "replay",
        [_line(mode, readings[mode]) for mode in modes],
        [each.sample(mode=mode) for mode in modes for pair in readings[mode] for each in pair],
        {"changes": backlog.changes, "tables": len(SHOP_TABLES), "cores": CORES},
        notes=[
            "after each replay the upserted tables were compared with the source, and are equal"
        ],
    )


def _line(mode: str, pairs: list[tuple[Reading, Reading]]) -> Line:
    return ratio_line(
        f"replay to delta, {mode}",
        "changes/s",
        [again.rate for _, again in pairs],
        [live.rate for live, _ in pairs],
        Bound(REPLAY_FLOOR),
        beside_name="live",
    )


def _run_both(
    source: Source, warm: Backlog, backlog: Backlog, mode: str
) -> tuple[Reading, Reading]:
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
                seconds = pipeline.event("done")["at"] - began
            live = Reading("live", _TRANSPORT, backlog.changes, seconds)
            again = _replay(log, warm, backlog)
        if mode == "upsert":
            verify_shop(source, lake)
    finally:
        for place in (log, lake, work_dir):
            shutil.rmtree(place, ignore_errors=True)
    return live, again


def _replay(log: Path, warm: Backlog, backlog: Backlog) -> Reading:
    replays = Replays(open_store(log.as_uri()))
    since, until = Offset.whole(warm.end), Offset.whole(backlog.end)
    request = Request.new(_STREAM, since, until, now=datetime.now(UTC))
    replays.ask(request)
    while not (replays.window(request) or replays.outcome(request)):
        time.sleep(_POLL_S)
    began = time.monotonic()
    while (outcome := replays.outcome(request)) is None:
        if time.monotonic() > began + _PATIENCE_S:
            raise ProgramFailed("the replay does not come to its end")
        time.sleep(_POLL_S)
    seconds = time.monotonic() - began
    if outcome.state != "done" or outcome.change_count != backlog.changes:
        raise ProgramFailed(f"the replay is not what it should be: {outcome}")
    return Reading("replay", "log", outcome.change_count, seconds)
