"""The bar that long work shows on a terminal; elsewhere it draws nothing."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

LINE_INTERVAL_S: Final = 5.0
"""How often a line is written where there is no terminal."""


def make_bar(console: Console) -> Progress:
    """What it is, how far, `facts`, and the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
