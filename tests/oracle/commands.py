"""Tailrace as a user runs it: commands in processes of their own, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Final

from tests.capture.running import ROOT
from tests.oracle.lake import MODES, tables_of
from tests.oracle.tables import AT_FIRST, LATE, SCHEMA, Table

COMMANDS: Final = ("capture", "pipeline")


class Commands:
    """Capture and pipeline over one configuration, each restarted after its death."""

    def __init__(self, directory: Path, dsn: str, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._config = directory / "tailrace.yaml"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0
        streams = {
            mode: {
                "tables": [_pattern(table) for table in tables_of(mode, (*AT_FIRST, LATE))],
                "sink": {"type": "delta", "path": f"lake/{mode}", "mode": mode},
                "max_changes_per_batch": 2000,
            }
            for mode in MODES
        }
        told = {
            "source": {"name": "main", "dsn": dsn},
            "log": {"url": "file:log"},
            "capture": {"tables": [f"{SCHEMA}.*"]},
            "spark": {"master": "local[2]", "settings": {"spark.ui.enabled": "false"}},
            "streams": streams,
        }
        self._config.write_text(json.dumps(told))

    @property
    def log_url(self) -> str:
        """Where the log is."""
        return f"file:{self._directory / 'log'}"

    @property
    def lakes(self) -> dict[str, Path]:
        """Where the tables of each mode are."""
        return {mode: self._directory / "lake" / mode for mode in MODES}

    def start(self) -> None:
        """Start what does not run."""
        for name in COMMANDS:
            if name not in self._running:
                with self._output(name).open("ab") as output:
                    arguments = [name, "--config", str(self._config)]
                    self._running[name] = subprocess.Popen(
                        [sys.executable, "-m", "tailrace.cli", *arguments],
                        cwd=self._directory,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={
                            **os.environ,
                            "PYTHONPATH": f"{ROOT / 'src'}",
                            # So that `last_words` has them.
                            "PYTHONFAULTHANDLER": "1",
                        },
                    )

    def check(self) -> None:
        """Fail if one has ended by itself."""
        for name, process in self._running.items():
            assert process.poll() is None, f"{name} has ended\n{self.said(name)[-4000:]}"

    def said(self, name: str) -> str:
        """What a command wrote so far."""
        return self._output(name).read_text()

    def last_words(self) -> str:
        """End all of them, and what each said last and where its threads were."""
        words = []
        for name in list(self._running):
            said = self.said(name)
            process = self._running.pop(name)
            process.send_signal(signal.SIGABRT)
            process.wait()
            stacks = self.said(name).removeprefix(said)
            words.append(f"{name} said last:\n{said[-2000:]}\nand was at:\n{stacks[-8000:]}")
        return "\n".join(words)

    def kill_one(self) -> None:
        """As `kill -9`; capture more often, for it starts in no time."""
        (name,) = self._random.choices(COMMANDS, weights=[3, 1])
        self._kill(name)
        self.kills += 1

    def stop(self) -> None:
        """End all of them."""
        for name in list(self._running):
            self._kill(name)

    def _kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def _output(self, name: str) -> Path:
        return self._directory / f"{name}.txt"


def _pattern(table: Table) -> str:
    name = table.name.replace('"', '""')
    return f'{SCHEMA}."{name}"'
