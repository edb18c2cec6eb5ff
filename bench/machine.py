"""What a figure was measured on: the machine, its disk, and the versions of everything involved."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psycopg
from psycopg import pq

from bench.options import ROOT

FSYNC_BYTES: Final = 4096
_FSYNC_COUNT: Final = 200
_PACKAGES: Final = ("tailrace", "pyarrow", "pyspark", "psycopg", "numpy", "deltalake")


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware and its kernel; `load` is the load average before anything was started."""

    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    file_system: str
    fsync_ms: float
    load: float

    @property
    def is_busy(self) -> bool:
        """Whether others were at work on it, so that figures are not to be trusted."""
        return self.load > 0.25 * self.cores


def look_at_machine(directory: Path) -> Machine:
    """Describe this machine and the disk of `directory`."""
    return Machine(
        cpu=_first_value("/proc/cpuinfo", "model name") or platform.processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        kernel=f"{platform.system()} {platform.release()}",
        file_system=_file_system(directory),
        fsync_ms=round(statistics.median(time_fsyncs(directory)) * 1e3, 3),
        load=round(os.getloadavg()[0], 2),
    )


def versions(server: str) -> dict[str, str]:
    """Of the server, of Python, and of the packages that the figures depend on."""
    found = {"postgres": server, "python": sys.version.split()[0], "libpq": str(pq.version())}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["commit"] = _commit()
    return found


def server_version(dsn: str) -> str:
    """As the server itself says."""
    with psycopg.connect(dsn) as conn:
        return conn.info.parameter_status("server_version") or "unknown"


def as_json(machine: Machine) -> dict[str, object]:
    """For the file of results."""
    return {**asdict(machine), "is_busy": machine.is_busy}


def time_fsyncs(directory: Path, count: int = _FSYNC_COUNT) -> list[float]:
    """How many seconds each of `count` writes of 4 KiB takes, with its fsync."""
    path = directory / "fsync-probe"
    data = os.urandom(FSYNC_BYTES)
    times = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for _ in range(count):
            began = time.perf_counter()
            os.write(handle, data)
            os.fsync(handle)
            times.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        path.unlink()
    return times


@contextmanager
def limited_to_cores(count: int) -> Iterator[None]:
    """Run this process, and all that it starts meanwhile, on at most `count` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _first_value(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _file_system(directory: Path) -> str:
    result = subprocess.run(
        ["stat", "--file-system", "--format=%T", directory], capture_output=True, text=True
    )
    return result.stdout.strip() or "unknown"


def _commit() -> str:
    try:
        result = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return result.stdout.strip() or "unknown"
