"""`replay`: everything that the pipeline has delivered, delivered once more, beside what the
pipeline itself took for it.

Capture and pipeline are processes of their own, as under `tailrace run`. When the last change is in
its table, a replay of all of them is asked for; the clock runs from when the pipeline takes it up,
within a second, until it is over. To tables of rows and to tables of changes.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.child import ProgramFailed
from bench.pipeline import CORES, delivered, prepare_shop
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.sides import Reading
from bench.source import Backlog
from bench.workbench import Workbench
from bench.workload import SHOP_TABLES
from tailrace.model import Offset
from tailrace.storage import open_store
from tailrace.streams.replay import Replays, Request

REPLAY_FLOOR: Final = 2.0
MODES: Final = ("upsert", "append")
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
                with delivered(source, warm, backlog, mode=mode) as (log, live):
                    again = _replay(log, warm, backlog)
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


def _has_begun(replays: Replays) -> bool:
    request = replays.current(_STREAM)
    return request is not None and replays.window(request) is not None


def _replay(log: Path, warm: Backlog, backlog: Backlog) -> Reading:
    replays = Replays(open_store(log.as_uri()))
    since, until = Offset.whole(warm.end), Offset.whole(backlog.end)
    request = Request.new(_STREAM, since, until, now=datetime.now(UTC))
    replays.ask(request)
    while not (_has_begun(replays) or replays.outcome(request)):
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
