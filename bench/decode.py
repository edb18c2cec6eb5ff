"""`decode`: frames to typed Arrow columns on one core, beside a decoder that goes row by row and
beside the rate at which Postgres sends.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from bench.capture import prepare
from bench.child import Child
from bench.report import Bound, Report, ratio_line, shown
from bench.sides import Reading, run_bare
from bench.source import Backlog, Source
from bench.workbench import Workbench

PLAIN_FLOOR: Final = 10.0
SENDER_FLOOR: Final = 3.0
CALL_CHANGES: Final = 50_000
"""How many are decoded by one call: about as many as a segment of full size has."""

_PLAIN_SHARE: Final = 10


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = workbench.options.rows
    ours: list[Reading] = []
    plain: list[Reading] = []
    sender: list[Reading] = []
    with workbench.source("decode") as source:
        prepare(workbench, source, rows)
        backlog = source.survey()
        log = captured_log(source, backlog)
        for number in range(workbench.options.rounds):
            ours.append(run_decode(source, log, rows))
            # A rate, and one that does not depend on how many rows there are: a share will do.
            plain.append(run_decode(source, log, rows // _PLAIN_SHARE, decoder="row by row"))
            sender.append(run_bare(source, backlog, "socket"))
            workbench.say(
                f"round {number + 1} ours {shown(ours[-1].rate, 'rows/s')}, row by row "
                f"{shown(plain[-1].rate, 'rows/s')}, sender {shown(sender[-1].rate, 'rows/s')}"
            )
        shutil.rmtree(log)
    return Report(
        "decode",
        [
            ratio_line(
                "decode, one core",
                "rows/s",
                [reading.rate for reading in ours],
                [reading.rate for reading in beside],
                Bound(floor),
                beside_name=name,
            )
            for beside, name, floor in (
                (plain, "row by row", PLAIN_FLOOR),
                (sender, "sent by postgres, socket", SENDER_FLOOR),
            )
        ],
        [reading.sample() for reading in (*ours, *plain, *sender)],
    )


def captured_log(source: Source, backlog: Backlog) -> Path:
    """The backlog as a log, which the caller deletes."""
    log = source.new_log()
    with source.capture("socket", backlog.changes, log=log) as child:
        child.event("done")
    return log


def run_decode(
    source: Source,
    log: Path,
    changes_max: int,
    *,
    decoder: str = "ours",
    call_changes: int = CALL_CHANGES,
) -> Reading:
    """Decode the first changes of a log in a process of its own."""
    task = {
        "log": log.as_uri(),
        "changes_max": changes_max,
        "decoder": decoder,
        "call_changes": call_changes,
    }
    with Child("decode", task, log=source.directory / "decode.log") as child:
        done = child.event("done")
    return Reading(
        f"decode {decoder}",
        "-",
        done["changes"],
        done["seconds"],
        done["cpu_s"],
        done["memory_mb"],
    )
