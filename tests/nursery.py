"""Programs in processes of their own, forked from one that has loaded all they need: to start
Python anew takes longer than most tests.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from tailrace import failpoint as failpoints

KILLED: Final = 137
"""The status of a process that has come to its failpoint."""

_FORKS: Final = multiprocessing.get_context("forkserver")
_PROGRAMS: Final = (
    *("bases.process", "capture.process"),
    *("streams.killed_queue", "streams.killed_replay", "streams.process"),
)
_FORKS.set_forkserver_preload([f"tests.{program}" for program in _PROGRAMS])


def start(
    program: Callable[..., None], *arguments: str, failpoint: str, output: Path
) -> ForkServerProcess:
    """The program at work; it dies at the failpoint, and what it says goes to the file."""
    output.touch()
    process = _FORKS.Process(
        target=_begin, args=(program, arguments, failpoint, str(output)), daemon=True
    )
    process.start()
    return process


def die(
    program: Callable[..., None],
    *arguments: str,
    failpoint: str,
    output: Path,
    patience_s: float = 200.0,
) -> None:
    """Let the program run to its failpoint, which it must come to."""
    process = start(program, *arguments, failpoint=failpoint, output=output)
    process.join(patience_s)
    assert process.exitcode == KILLED, output.read_text()


def _begin(
    program: Callable[..., None], arguments: tuple[str, ...], failpoint: str, output: str
) -> None:
    target = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.environ["TAILRACE_FAILPOINT"] = failpoint
    importlib.reload(failpoints)
    program(*arguments)
