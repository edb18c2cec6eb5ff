"""A directory with a tailrace.yaml, and the commands run on it as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tailrace.cli.main import main
from tailrace.log import Reader, read_genesis
from tailrace.model import Lsn
from tailrace.postgres.server import wal_position
from tailrace.storage import Store, open_store

TIMEOUT_S: Final = 200.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def failure(self) -> tuple[int, str, str]:
        """The status, the one error line and the one hint line; log lines may come before."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        hints = [line for line in self.err.splitlines() if line.startswith("hint: ")]
        assert len(errors) == 1 and len(hints) <= 1, self
        assert "Traceback" not in self.err and "this is a bug" not in self.err
        hint = hints[0].removeprefix("hint: ") if hints else ""
        return self.code, errors[0].removeprefix("error: "), hint

    @property
    def json(self) -> dict[str, Any]:
        """The JSON object that it printed."""
        value: dict[str, Any] = json.loads(self.out)
        return value

    @property
    def json_list(self) -> list[dict[str, Any]]:
        """The JSON array of objects that it printed."""
        values: list[dict[str, Any]] = json.loads(self.out)
        return values


class Running:
    """A command in a process of its own; what it says is kept."""

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path, limit: Callable[[], None] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=limit,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()

    @property
    def text(self) -> str:
        """All it has said."""
        return "".join(self.lines)

    def await_line(self, words: str) -> None:
        """Wait until a line holds these words."""
        deadline = time.monotonic() + TIMEOUT_S
        while words not in self.text:
            assert self._reader.is_alive() and time.monotonic() < deadline, self.text
            with self._news:
                self._news.wait(_POLL_S)

    def wait(self) -> Ended:
        """Wait for its end."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return Ended(code, "", self.text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.wait()


class Project:
    """One directory."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capsys = capsys

    @property
    def config(self) -> Path:
        """The configuration's file."""
        return self.directory / "tailrace.yaml"

    @property
    def store(self) -> Store:
        """The log's store, where the configuration does not name another."""
        return open_store(f"file:{self.directory / 'log'}")

    def configure(
        self,
        dsn: str,
        *,
        tables: Sequence[str] = ("public.*",),
        log: str = "file:log",
        source: str = "test",
        mode: str = "wal",
        more: str = "",
    ) -> None:
        """Write the configuration."""
        told: dict[str, object] = {
            "source": {"name": source, "dsn": dsn},
            "log": {"url": log},
            "capture": {"mode": mode, "tables": list(tables)},
        }
        lines = [f"{key}: {json.dumps(value)}" for key, value in told.items()]
        self.config.write_text("\n".join([*lines, more]))

    def run(self, *arguments: str) -> Ended:
        """Run a command to its end, in this process."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--config", str(self.config)])
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    @contextmanager
    def running(
        self, *arguments: str, limit: Callable[[], None] | None = None
    ) -> Iterator[Running]:
        """Run a command in a process of its own; it ends with the block."""
        running = Running(
            [*arguments, "--config", str(self.config)], cwd=self.directory, limit=limit
        )
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.kill()
            running.wait()

    @contextmanager
    def capturing(self) -> Iterator[Running]:
        """Run `tailrace capture`; it is streaming, and told to stop at the end."""
        with self.running("capture") as capture:
            capture.await_line("streaming slot=")
            yield capture
            assert capture.stop().code == 0, capture.text

    def await_captured(self, connection: psycopg.Connection) -> Lsn:
        """Wait until the log has everything that is committed; returns its end."""
        end, deadline = wal_position(connection), time.monotonic() + TIMEOUT_S
        while not read_genesis(self.store) or Reader(self.store).tip().position < end:
            assert time.monotonic() < deadline, f"the log did not get to {end}"
            time.sleep(_POLL_S)
        return Reader(self.store).tip().segment_end
