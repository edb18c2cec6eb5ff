"""Shows how far bases are: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape

from tailrace.bases.progress import BaseProgress
from tailrace.cli.bar import LINE_INTERVAL_S, make_bar
from tailrace.cli.quantity import show_duration, show_size

_TABLES_SHOWN_MAX: Final = 3
_XMIN_AGE_SHOWN_MIN: Final = 1_000_000


class BaseBar:
    """`with BaseBar(console) as bar: … bar.show(progress)`; call it as often as you like."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._next_line_s = float("-inf")
        self._said = ""
        self._unsaid: BaseProgress | None = None
        self._bar = make_bar(console)
        self._task = self._bar.add_task("waiting for a snapshot", total=None, facts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if self._unsaid is not None:
            self._write(self._unsaid)

    def show(self, progress: BaseProgress) -> None:
        """Redraw the bar, or write a line if it is time for one."""
        text = describe(progress)
        if self._console.is_terminal:
            self._bar.update(
                self._task,
                description=escape(text),
                completed=progress.row_count,
                total=progress.row_estimate or None,
                facts=facts(progress),
            )
        elif self._clock() >= self._next_line_s or text != self._said:
            self._write(progress)
        else:
            self._unsaid = progress

    def _write(self, progress: BaseProgress) -> None:
        text = describe(progress)
        self._next_line_s = self._clock() + LINE_INTERVAL_S
        self._said, self._unsaid = text, None
        line = f"{text}: {progress.share:.0%}, {facts(progress)}" if progress.tables else text
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def describe(progress: BaseProgress) -> str:
    """Which tables, or what is waited for."""
    if progress.waiting:
        return progress.waiting
    shown = ", ".join(progress.tables[:_TABLES_SHOWN_MAX])
    more = len(progress.tables) - _TABLES_SHOWN_MAX
    return f"base of {shown} and {more} more" if more > 0 else f"base of {shown}"


def facts(progress: BaseProgress) -> str:
    """Rows, rate, and time left by that rate."""
    if not progress.tables:
        return ""
    text = (
        f"{progress.row_count:,} rows, {progress.rows_per_s:,.0f}/s,"
        f" {show_size(progress.data_bytes)}"
    )
    if progress.rows_per_s and progress.row_count < progress.row_estimate:
        left_s = (progress.row_estimate - progress.row_count) / progress.rows_per_s
        text += f", {show_duration(left_s)} left"
    if progress.xmin_age >= _XMIN_AGE_SHOWN_MIN:
        text += f", vacuum {progress.xmin_age:,} transactions behind"
    return text
