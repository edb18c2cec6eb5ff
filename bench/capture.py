"""`capture`: a backlog from the WAL into the durable log, beside the limit and beside Postgres' own
client.

The limit is a bare loop over the same client library that throws away what it reads. Both
transports are measured, because the wire is what limits most readers.
"""

from __future__ import annotations

from typing import Final

from bench.report import Bound, Line, Report, ratio_line, shown
from bench.sides import Reading, run_bare, run_capture, run_recvlogical
from bench.source import Source
from bench.workbench import Workbench
from bench.workload import ROWS_PER_TRANSACTION, fill_orders, make_orders

TRANSPORTS: Final = ("tcp", "socket")
BARE_FLOOR: Final = 0.9
RECVLOGICAL_FLOOR: Final = {"tcp": 1.0, "socket": 0.85}
MEMORY_MB_MAX: Final = 200.0
_FULL_FACTOR: Final = 10

_SIDES: Final = (run_capture, run_bare, run_recvlogical)


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = workbench.options.rows
    with workbench.source("capture") as source:
        prepare(workbench, source, rows)
        backlog = source.survey()
        readings: list[Reading] = []
        for round_number in range(workbench.options.rounds):
            for transport in TRANSPORTS:
                # Whoever goes first finds the caches of the one before; so that changes.
                for turn in range(len(_SIDES)):
                    side = _SIDES[(turn + round_number) % len(_SIDES)]
                    readings.append(side(source, backlog, transport))
                    workbench.say(f"round {round_number + 1} {_described(readings[-1])}")
    lines = [line for transport in TRANSPORTS for line in _rate_lines(readings, transport)]
    peak_mb = max(each.memory_mb for each in readings if each.side == "capture")
    lines.append(_memory_line(rows, peak_mb))
    if workbench.options.full:
        readings.append(_full_run(workbench, rows * _FULL_FACTOR))
        lines.append(_memory_line(rows * _FULL_FACTOR, readings[-1].memory_mb))
    return Report(
        "capture",
        lines,
        [reading.sample() for reading in readings],
        {
            "rows_per_transaction": ROWS_PER_TRANSACTION,
            "frame_bytes": backlog.frame_bytes,
            "frames": backlog.frames,
        },
    )


def prepare(workbench: Workbench, source: Source, rows: int) -> None:
    """Make the slot, then write the backlog."""
    workbench.say(f"writing a backlog of {rows:,} rows")
    with source.connect() as conn:
        make_orders(conn)
        source.begin()
        fill_orders(conn, 1, rows)


def rates(readings: list[Reading], side: str, transport: str) -> list[float]:
    """One rate for each round, in order."""
    return [r.rate for r in readings if r.side == side and r.transport == transport]


def _described(reading: Reading) -> str:
    return f"{reading.transport} {reading.side} {shown(reading.rate, 'rows/s')}"


def _rate_lines(readings: list[Reading], transport: str) -> list[Line]:
    ours = rates(readings, "capture", transport)
    return [
        ratio_line(
            f"capture, {transport}",
            "rows/s",
            ours,
            rates(readings, side, transport),
            Bound(floor),
            beside_name=name,
        )
        for side, name, floor in (
            ("bare", "bare loop", BARE_FLOOR),
            ("pg_recvlogical", "pg_recvlogical", RECVLOGICAL_FLOOR[transport]),
        )
    ]


def _memory_line(rows: int, peak_mb: float) -> Line:
    bound = Bound(MEMORY_MB_MAX, at_most=True, unit="MB")
    what = f"peak memory, {rows:,} rows"
    return Line(what, shown(peak_mb, "MB"), "-", peak_mb, bound, unit="MB")


def _full_run(workbench: Workbench, rows: int) -> Reading:
    """One run over a larger backlog, for its memory."""
    with workbench.source("capture_full") as source:
        prepare(workbench, source, rows)
        reading = run_capture(source, source.survey(), "socket")
        workbench.say(f"full {_described(reading)}")
        return reading
