"""What a benchmark found: lines with a floor each, a table for people, and JSON with every sample.

A line compares one number with its bound. That number is usually a ratio of ours to the reference,
taken in each round and then the median of the rounds: what slows a whole round down does not count.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import Machine, as_json
from bench.options import ROOT, Options

RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True, slots=True)
class Bound:
    """A floor, or a ceiling if `at_most`."""

    limit: float
    at_most: bool = False
    unit: str = "x"

    def holds_for(self, value: float) -> bool:
        """Whether `value` is on the right side."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {shown(self.limit, self.unit)}"


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison. `value` is None if it could not be measured, and `note` says why."""

    what: str
    ours: str
    beside: str
    value: float | None
    bound: Bound | None = None
    unit: str = "x"
    note: str = ""

    @property
    def passed(self) -> bool:
        """False only if a bound was measured and does not hold."""
        return self.value is None or self.bound is None or self.bound.holds_for(self.value)

    @property
    def result(self) -> str:
        """The compared number, as the table shows it."""
        return "not measured" if self.value is None else shown(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one benchmark; `samples` are all single measurements, in order."""

    name: str
    lines: Sequence[Line]
    samples: Sequence[Mapping[str, Any]]
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether no bound was missed."""
        return all(line.passed for line in self.lines)


def shown(value: float, unit: str) -> str:
    """A number with its unit, with as many digits as it deserves."""
    if unit == "x":
        return f"{value:.2f}x"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def ratio_line(
    what: str,
    unit: str,
    ours: Sequence[float],
    beside: Sequence[float],
    bound: Bound | None,
    *,
    beside_name: str,
) -> Line:
    """Compare rounds: `ours` and `beside` have one entry for each, in the same order."""
    ratios = [mine / other for mine, other in zip(ours, beside, strict=True)]
    return Line(
        what=what,
        ours=shown(statistics.median(ours), unit),
        beside=f"{shown(statistics.median(beside), unit)} {beside_name}",
        value=statistics.median(ratios),
        bound=bound,
    )


def show(report: Report, machine: Machine, options: Options, console: Console) -> None:
    """Print the table."""
    table = Table(title=f"{report.name}", title_justify="left", header_style="bold")
    for heading in ("measured", "ours", "beside it", "floor", "ratio"):
        table.add_column(heading, justify="left" if heading == "measured" else "right")
    for line in report.lines:
        style = "" if line.passed else "bold red"
        bound = str(line.bound) if line.bound else "-"
        table.add_row(line.what, line.ours, line.beside, bound, line.result, style=style)
    console.print(table)
    console.print(
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb} GB, {machine.kernel}, "
        f"{machine.file_system}, fsync {machine.fsync_ms} ms"
    )
    rounds = "one round" if options.rounds == 1 else f"medians of {options.rounds} rounds"
    console.print(f"{rounds}; a single round on a shared machine is easily off by 15 %")
    for note in [*(line.note for line in report.lines if line.note), *report.notes]:
        console.print(f"note: {note}")
    if machine.is_busy:
        console.print(f"the machine was busy (load {machine.load}): do not trust these figures")
    if options.quick:
        console.print("a quick run shows that everything works; its figures mean nothing")


def save(
    report: Report,
    machine: Machine,
    versions: Mapping[str, str],
    options: Options,
    directory: Path = RESULTS,
) -> Path:
    """Write everything to a file of its own; its path."""
    now = datetime.now(UTC)
    value = {
        "benchmark": report.name,
        "at": now.isoformat(timespec="seconds"),
        "passed": report.passed,
        "machine": as_json(machine),
        "versions": dict(versions),
        "settings": {
            "rows": options.rows,
            "rounds": options.rounds,
            "quick": options.quick,
            "full": options.full,
            **report.settings,
        },
        "lines": [_line_as_json(line) for line in report.lines],
        "notes": list(report.notes),
        "samples": [dict(sample) for sample in report.samples],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{report.name}-{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    return path


def _line_as_json(line: Line) -> dict[str, object]:
    return {
        "what": line.what,
        "ours": line.ours,
        "beside": line.beside,
        "value": line.value,
        "unit": line.unit,
        "bound": None if line.bound is None else line.bound.limit,
        "at_most": line.bound is not None and line.bound.at_most,
        "passed": line.passed,
        "note": line.note,
    }
