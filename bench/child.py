"""Programs in processes of their own, which tell what happens by lines of JSON.

A program is started with its task as one JSON argument. It ends when its standard input does, so it
ends with us, however we end; a whole group of processes is killed if it does not.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.options import ROOT

STOP_TIMEOUT_S: Final = 60.0
EVENT_TIMEOUT_S: Final = 3600.0
_TAIL_BYTES: Final = 2000


class ProgramFailed(Exception):
    """A measured program ended, or said nothing, before it was done."""


class Child:
    """One program at work; a context manager, so that it never outlives its use."""

    def __init__(
        self,
        program: str,
        task: Mapping[str, object],
        *,
        log: Path,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        self._program = program
        self._log = log
        paths = [str(ROOT / "src"), str(ROOT)]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", f"bench.programs.{program}", json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
                # Ctrl-C is for us; we stop the programs in the right order.
                start_new_session=True,
            )
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(patient=kind is None)

    @property
    def pid(self) -> int:
        """Of the program's process."""
        return self._process.pid

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the program to say `name`; what it says before is passed over."""
        *_, last = self.events_until(name)
        return last

    def events_until(self, name: str) -> Iterator[dict[str, Any]]:
        """All that the program says, up to and including `name`."""
        deadline = time.monotonic() + EVENT_TIMEOUT_S
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ProgramFailed(f"{self._program} did not say {name} in time") from None
            if event is None:
                raise ProgramFailed(f"{self._program} ended before {name}: {self._last_words()}")
            yield event
            if event["event"] == name:
                return

    def close_input(self) -> None:
        """Ask the program to end; what it still says can be read."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End the program as a crash does, with all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, *, patient: bool = True) -> None:
        """Ask the program to end, then make it."""
        assert self._process.stdout is not None
        self.close_input()
        try:
            self._process.wait(STOP_TIMEOUT_S if patient else 5.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also what the program itself has started and left.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Whatever else a library prints is not for us.
            if line.startswith(b'{"event"'):
                self._events.put(json.loads(line))
        self._events.put(None)

    def _last_words(self) -> str:
        with self._log.open("rb") as errors:
            errors.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            return errors.read().decode(errors="replace").strip() or "it gave no reason"
