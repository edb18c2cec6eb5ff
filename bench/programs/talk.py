"""How a program talks to the benchmark that started it. Needs the standard library only."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any


def task() -> dict[str, Any]:
    """What the program was started to do."""
    value: dict[str, Any] = json.loads(sys.argv[1])
    return value


def say(event: str, **facts: object) -> None:
    """Tell the benchmark; times are of the monotonic clock, which all processes share."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def stop_with_parent() -> threading.Event:
    """An event that is set when the benchmark wants this program to end, or is gone."""
    stop = threading.Event()

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        stop.set()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    return stop


def peak_memory_mb() -> float:
    """The most memory that this process ever had, in megabytes of 10^6 bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not tell the peak memory")
