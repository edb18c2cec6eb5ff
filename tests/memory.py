"""How much memory a process has had, as the operating system counts it."""

from __future__ import annotations

from pathlib import Path


def peak_bytes(pid: int | str = "self") -> int:
    """The most that was resident at any time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")
