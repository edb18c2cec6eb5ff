"""What all processes of this session have taken: the driver, the JVM and Spark's workers.

A benchmark starts each program as a session of its own, so all of them can be told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_TIMES: Final = slice(11, 15)
"""In `/proc/PID/stat`, behind the name: user and system time, also of children that have ended."""


def session_cpu_s() -> float:
    """How long the processors have worked for them, those that have ended included."""
    ticks = 0
    for process in _processes():
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has just ended
        ticks += sum(map(int, fields[_TIMES]))
    return ticks / _TICKS_PER_S


def session_memory_mb() -> float:
    """The sum of the most memory that each of them ever had.

    Pages that workers share with the process they were forked from count more than once.
    """
    total_kb = 0
    for process in _processes():
        try:
            lines = (process / "status").read_text().splitlines()
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has just ended
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total_kb * 1024 / 1e6


def _processes() -> Iterator[Path]:
    ours = os.getsid(0)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == ours:
                yield process
        except ProcessLookupError:
            continue  # it has just ended
