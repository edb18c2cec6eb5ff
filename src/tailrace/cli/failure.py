"""How a command fails: one `error:` line, one `hint:` line, and the exit status.

1 is a finding or a failure, 2 is wrong use, which a wrong configuration is too. What is not a
TailraceError is a bug of ours: its traceback goes to a file, or to the terminal with `--verbose`.
"""

from __future__ import annotations

import tempfile
import traceback
from typing import Final

from rich.console import Console
from rich.text import Text

from tailrace.errors import ConfigError, TailraceError

FAILED: Final = 1
WRONG_USE: Final = 2


def report(error: Exception, *, verbose: bool) -> int:
    """Tell the user on stderr what went wrong; returns the exit status."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if verbose:
        console.print("".join(traceback.format_exception(error)), markup=False, end="")
    if not isinstance(error, TailraceError):
        _line(console, "error", f"{type(error).__name__}: {_one_line(str(error))}")
        _line(console, "hint", f"this is a bug in tailrace; {_where(error, verbose)}")
        return FAILED
    _line(console, "error", _one_line(str(error)))
    if error.hint:
        _line(console, "hint", _one_line(error.hint))
    return WRONG_USE if isinstance(error, ConfigError) else FAILED


def _line(console: Console, label: str, message: str) -> None:
    style = "bold red" if label == "error" else "bold cyan"
    console.print(Text.assemble((f"{label}:", style), " ", message))


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _where(error: Exception, verbose: bool) -> str:
    if verbose:
        return "the traceback is above"
    with tempfile.NamedTemporaryFile(
        "w", prefix="tailrace-", suffix=".traceback.txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    return f"the traceback is in {file.name}"
