"""What a running demo shows: one frame of numbers, as a live screen or as a line of text.

A frame is a plain value and drawing it has no effects. On a terminal the newest frame is redrawn in
place; elsewhere (a pipe, a CI log) one line is written every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tailrace.cli.quantity import show_duration, show_size

_LINE_INTERVAL_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class TableRows:
    """How many rows a table has on both sides; None while it is not known."""

    name: str
    source: int | None
    lake: int | None


@dataclass(frozen=True, slots=True)
class DemoFrame:
    """The demo at one moment.

    `lag_ms` is the age of the oldest change that the lake does not have yet; None while it is not
    known. `trouble` is what the user should know, such as a server that is away.
    """

    phase: str
    elapsed_s: float
    transactions: int
    changes: int
    changes_per_s: float
    lag_ms: float | None
    segments: int
    log_bytes: int
    wal_retained_bytes: int | None
    tables: tuple[TableRows, ...] = ()
    trouble: str = ""


def draw(frame: DemoFrame) -> RenderableType:
    """The frame as a panel for a terminal."""
    parts: list[RenderableType] = [_numbers(frame), Text(), _tables(frame)]
    if frame.trouble:
        parts.append(Text(frame.trouble, "yellow"))
    title = f"tailrace demo · {frame.phase} · {frame.elapsed_s:.0f} s"
    return Panel(Group(*parts), title=title, title_align="left", expand=False, padding=(1, 2))


def line(frame: DemoFrame) -> str:
    """The frame as one line."""
    tables = " ".join(
        f"{table.name}={_number(table.source)}/{_number(table.lake)}" for table in frame.tables
    )
    parts = (
        f"{frame.elapsed_s:4.0f}s {frame.phase}:",
        f"changes={frame.changes:,}",
        f"rate={frame.changes_per_s:,.0f}/s",
        f"lag={_duration(frame.lag_ms)}",
        f"segments={frame.segments:,}",
        f"log={show_size(frame.log_bytes)}",
        f"wal_retained={_size(frame.wal_retained_bytes)}",
        f"source/lake {tables}" if tables else "",
        f"({frame.trouble})" if frame.trouble else "",
    )
    return " ".join(part for part in parts if part)


class Screen:
    """`with Screen(console) as screen: … screen.show(frame)`; call it as often as you like."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._next_line_s = float("-inf")
        self._phase = ""
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, frame: DemoFrame) -> None:
        """Redraw the screen, or write a line if it is time for one or the phase is new."""
        if self._live is not None:
            self._live.update(draw(frame), refresh=True)
        elif self._clock() >= self._next_line_s or frame.phase != self._phase:
            self._next_line_s = self._clock() + _LINE_INTERVAL_S
            self._phase = frame.phase
            self._console.print(line(frame), soft_wrap=True, highlight=False, markup=False)


def _numbers(frame: DemoFrame) -> Table:
    grid = Table.grid(padding=(0, 3))
    for _ in range(2):
        grid.add_column(style="dim")
        grid.add_column(justify="right", min_width=12)
    rows = (
        ("transactions", f"{frame.transactions:,}", "segments", f"{frame.segments:,}"),
        ("changes", f"{frame.changes:,}", "log size", show_size(frame.log_bytes)),
        (
            "changes/s",
            f"{frame.changes_per_s:,.0f}",
            "WAL retained",
            _size(frame.wal_retained_bytes),
        ),
        ("lag to the lake", _duration(frame.lag_ms)),
    )
    for row in rows:
        grid.add_row(*row)
    return grid


def _tables(frame: DemoFrame) -> Table:
    table = Table("table", box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("source rows", justify="right")
    table.add_column("lake rows", justify="right")
    for rows in frame.tables:
        level = rows.source is not None and rows.source == rows.lake
        lake = Text(_number(rows.lake), "green" if level else "")
        table.add_row(rows.name, _number(rows.source), lake)
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "-" if value is None else show_size(value)


def _duration(value_ms: float | None) -> str:
    return "-" if value_ms is None else show_duration(value_ms / 1000)
