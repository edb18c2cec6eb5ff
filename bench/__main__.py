"""`python -m bench [NAME]`: run one benchmark, or all of them; exit 1 if a floor is missed.

A quick run misses floors as it likes: it only shows that everything works.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from bench import (
    base,
    capture,
    decode,
    drain,
    failover,
    fanout,
    growth,
    handover,
    latency,
    pipeline,
    replay,
    sinks,
    trigger_overhead,
    upsert,
    verify,
)
from bench.child import ProgramFailed
from bench.machine import Machine, limited_to_cores, look_at_machine, server_version, versions
from bench.options import ROOT, Options
from bench.report import Report, save, show
from bench.workbench import Workbench, own_server

BENCHMARKS: Final[dict[str, Callable[[Workbench], Report]]] = {
    "base": base.run,
    "capture": capture.run,
    "latency": latency.run,
    "decode": decode.run,
    "drain": drain.run,
    "pipeline": pipeline.run,
    "fanout": fanout.run,
    "failover": failover.run,
    "growth": growth.run,
    "upsert": upsert.run,
    "sinks": sinks.run,
    "replay": replay.run,
    "verify": verify.run,
    "handover": handover.run,
    "trigger_overhead": trigger_overhead.run,
}


def main() -> int:
    """Run; the exit status."""
    options, names = _read_arguments()
    console = Console(width=None if sys.stdout.isatty() else 120)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
        machine = look_at_machine(options.directory)
        passed = [_run(name, options, machine, console) for name in names]
    except ProgramFailed as failure:
        console.print(f"failed: {failure}", highlight=False, markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        return 130
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)
    return 0 if all(passed) else 1


def _run(name: str, options: Options, machine: Machine, console: Console) -> bool:
    console.rule(name)
    cores = pipeline.CORES if name in ("pipeline", "fanout", "replay") else machine.cores
    with limited_to_cores(cores), own_server(options) as server:
        found = versions(server_version(server.dsn))
        report = BENCHMARKS[name](Workbench(options, server, console))
    show(report, machine, options, console)
    console.print(f"everything is in {save(report, machine, found, options)}", soft_wrap=True)
    return report.passed or options.quick


def _read_arguments() -> tuple[Options, list[str]]:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "all"], default="all")
    parser.add_argument("--rows", type=int, help="size of the backlog (or BENCH_ROWS)")
    parser.add_argument("--rounds", type=int, help="how often each side runs (or BENCH_ROUNDS)")
    parser.add_argument("--quick", action="store_true", help="only see that everything works")
    parser.add_argument("--postgres", type=int, default=18, help="major version of the server")
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / ".tailrace",
        help="on the disk to measure with; what is made there is deleted again",
    )
    given = parser.parse_args()
    options = Options.of(
        rows=given.rows,
        rounds=given.rounds,
        quick=given.quick,
        postgres=given.postgres,
        directory=given.directory.absolute() / f"bench-{os.getpid()}",
    )
    return options, list(BENCHMARKS) if given.name == "all" else [given.name]


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
