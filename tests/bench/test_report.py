"""Promises of the reports: a missed floor fails, what was not measured says so, medians decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.machine import look_at_machine
from bench.options import Options
from bench.report import Bound, Line, Report, ratio_line, save


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (Bound(0.9), 0.9, True),
        (Bound(0.9), 0.89, False),
        (Bound(200, at_most=True, unit="MB"), 200, True),
        (Bound(200, at_most=True, unit="MB"), 201, False),
    ],
)
def test_bound_is_a_floor_or_a_ceiling(bound: Bound, value: float, holds: bool) -> None:
    assert bound.holds_for(value) == holds


def test_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    line = ratio_line("x", "rows/s", [10, 1, 30], [10, 2, 10], Bound(1.0), beside_name="other")
    assert line.value == 1.0
    assert line.passed


def test_missed_floor_fails_the_report() -> None:
    good = Line("a", "1", "1", 1.0, Bound(1.0))
    bad = Line("b", "1", "2", 0.5, Bound(1.0))
    assert Report("r", [good], []).passed
    assert not Report("r", [good, bad], []).passed


def test_what_was_not_measured_says_so_and_does_not_fail() -> None:
    line = Line("a", "1", "-", None, Bound(1.0))
    assert line.result == "not measured"
    assert line.passed


def test_result_file_tells_machine_versions_and_every_sample(tmp_path: Path) -> None:
    machine = look_at_machine(tmp_path)
    report = Report("r", [Line("a", "1", "1", 1.0, Bound(1.0))], [{"rate": 1.0}, {"rate": 2.0}])
    versions = {"postgres": "18.1"}
    path = save(report, machine, versions, Options(tmp_path, rounds=2), tmp_path)
    found = json.loads(path.read_text())
    assert found["machine"]["cpu"] and found["machine"]["fsync_ms"] > 0
    assert found["versions"] == versions
    assert found["samples"] == [{"rate": 1.0}, {"rate": 2.0}]
    assert found["passed"] is True
