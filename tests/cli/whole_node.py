"""A whole node, `tailrace run` with its capture, its pipeline and its Java, that things happen to.

Nodes of one source have directories of their own and share the log and the sinks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tests.capture.running import ROOT, wait_until
from tests.cli.processes import await_none, working_on

PATIENCE_S: Final = 300.0
SPARK: Final = {"master": "local[1]", "settings": {"spark.ui.enabled": "false"}}
PARTS: Final = ("run", "capture", "pipeline", "java")


class WholeNode:
    """One node; what it says in all its lives is kept."""

    def __init__(self, directory: Path, told: Mapping[str, object]) -> None:
        """`told` is its configuration."""
        self.directory = directory
        directory.mkdir()
        self.config = directory / "tailrace.yaml"
        self.config.write_text(json.dumps({"spark": SPARK, **told}))
        self._output = directory / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.cli", "run", "--config", str(self.config)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            )

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """All it has said."""
        return self._output.read_text(errors="replace")

    def await_said(self, *words: str, times: int = 1) -> None:
        """Wait until each of these was said so often, in all."""
        for each in words:
            wait_until(partial(self._has_said, each, times), patience_s=PATIENCE_S)

    def _has_said(self, words: str, times: int) -> bool:
        assert self.is_running, self.said[-4000:]
        return self.said.count(words) >= times

    def signal(self, number: signal.Signals, *parts: str) -> None:
        """Send a signal to these parts of it, each a process; to all if none is named."""
        for pid, line in working_on(self.directory):
            if not parts or _part(line) in parts:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue  # its parent was quicker

    def kill(self, *parts: str) -> None:
        """As `kill -9`; whatever is left must end by itself."""
        self.signal(signal.SIGKILL, *parts)
        self.await_end()

    def await_end(self) -> None:
        """Wait until nothing of it is left."""
        if self._process is not None:
            self._process.wait(PATIENCE_S)
        await_none(self.directory)

    def end(self) -> None:
        """Whatever state it is in."""
        self.signal(signal.SIGKILL)
        self.signal(signal.SIGCONT)
        self.await_end()


def _part(line: str) -> str:
    """What a process of a node is, by its command line."""
    return next((part for part in PARTS[:3] if f" {part} --config " in line), PARTS[3])
