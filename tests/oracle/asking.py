"""Commands of an operator, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.oracle.arrivals import Row


def start(config: Path, *arguments: str) -> subprocess.Popen[str]:
    """One that is not waited for."""
    command = [sys.executable, "-m", "tailrace.cli", *arguments, "--config", str(config)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def answer(command: subprocess.Popen[str]) -> str:
    """What it says in the end; that something is left is no error."""
    said, error = command.communicate()
    assert "Traceback" not in error and "error:" not in error, error
    return said


def letters(config: Path, stream: str) -> dict[Row, int]:
    """How many letters each row has."""
    found = {}
    said = answer(start(config, "dlq", "ls", stream, "--json"))
    for line in map(json.loads, said.splitlines()):
        assert not line["outdone"], line
        found[line["table"].partition(".")[2], json.loads(line["key"])["id"]] = line["letters"]
    return found
