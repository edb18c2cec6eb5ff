"""Commands of ours as child processes: started, watched, and never left behind.

A child reads its standard input, on which nothing is ever written: when its parent wants it to, or
is gone, however that came about, the input ends and the child stops as on SIGTERM. A signal would
not do: who stops a service may signal all its processes, and a second signal ends a child at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

STOP_TIMEOUT_S: Final = 20.0
_MARK: Final = "TAILRACE_CHILD"
_ERROR: Final = "error: "


class Child:
    """One running command. What it says goes to the terminal, or into the file `log`."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path | None, pass_fds: Sequence[int]
    ) -> None:
        self.name = name
        self.log = log
        output = log.open("ab") if log is not None else None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, _MARK: "1"},
            pass_fds=pass_fds,
            # Ctrl-C is for the parent, which stops its children in the right order.
            start_new_session=True,
        )
        if output is not None:
            output.close()

    @property
    def status(self) -> int | None:
        """The exit status, or minus the signal that killed it; None while it runs."""
        return self._process.poll()

    @property
    def error(self) -> str:
        """Why it has ended: its own last word, as far as it is in the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log is not None else []
        said = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        if said:
            return f"{self.name} has failed: {said[-1]}"
        if self.status is not None and self.status < 0:
            return f"{self.name} was killed by {signal.Signals(-self.status).name}"
        return f"{self.name} has ended"

    def ask_to_stop(self) -> None:
        """Ask it to end, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def make_stop(self) -> None:
        """Wait for its end; one that takes too long is killed."""
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Children:
    """`with Children() as children: children.start("capture") …`; all end with the block."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.ask_to_stop()
        for child in self._children:
            child.make_stop()

    def start(
        self,
        name: str,
        arguments: Sequence[str] = (),
        *,
        log: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start one more command; see `Child`."""
        self._children.append(Child(name, arguments, log=log, pass_fds=pass_fds))

    @property
    def ended(self) -> Child | None:
        """The first that runs no more."""
        return next((child for child in self._children if child.status is not None), None)


def stop_with_parent(stop: threading.Event) -> bool:
    """In a child: set `stop` when the parent asks for it or is gone. Anywhere else this does
    nothing. Returns whether this is a child.
    """
    if os.environ.pop(_MARK, None) is None:
        return False

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        stop.set()
        # If something hangs, there may be nobody left to make us end.
        time.sleep(STOP_TIMEOUT_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    return True
