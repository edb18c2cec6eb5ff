"""Which processes work on a directory: nothing of ours may stay behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 60.0


def working_on(directory: Path) -> list[tuple[int, str]]:
    """Process id and command line of those whose command line names it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if bytes(directory) in line:
            text = line.replace(b"\0", b" ").decode(errors="replace")
            found.append((int(process.name), text[:200]))
    return found


def await_none(directory: Path) -> None:
    """Wait until nobody works on it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while left := working_on(directory):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
