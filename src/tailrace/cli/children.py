"""Commands of ours as child processes: started, watched, and never left behind.

A child reads its standard input, on which nothing is ever written: when its parent is gone, however
that came about, the input ends and the child stops as on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

STOP_TIMEOUT_S: Final = 20.0
_MARK: Final = "TAILRACE_CHILD"


class Child:
    """One running command."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path | None = None) -> None:
        self.name = name
        self.log = log
        output = log.open("ab") if log is not None else None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli.main", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, _MARK: "1"},
            # Ctrl-C is for the parent, which stops its children in the right order.
            start_new_session=True,
        )
        if output is not None:
            output.close()

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def stop(self) -> int:
        """Ask it to end, then make it; returns the exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()


def stop_with_parent(stop: threading.Event) -> None:
    """In a child: set `stop` when the parent is gone. Anywhere else this does nothing."""
    if os.environ.pop(_MARK, None) is None:
        return

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        stop.set()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
