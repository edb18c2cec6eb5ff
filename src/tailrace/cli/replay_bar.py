"""Shows how far a replay is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape

from tailrace.cli.bar import LINE_INTERVAL_S, make_bar
from tailrace.streams.replay import Progress, Request


class ReplayBar:
    """`with ReplayBar(console, request) as bar: … bar.show(progress)`, as often as you like."""

    def __init__(
        self, console: Console, request: Request, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._clock = clock
        self._next_line_s = float("-inf")
        self._bar = make_bar(console)
        self._text = f"replay of {request.stream}, {request.window}"
        self._task = self._bar.add_task(escape(self._text), total=None, facts="")

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

    def show(self, progress: Progress) -> None:
        """Redraw the bar, or write a line if it is time for one."""
        if self._console.is_terminal:
            total = 1.0 if progress.has_begun else None
            self._bar.update(
                self._task, completed=progress.share, total=total, facts=escape(facts(progress))
            )
        elif self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + LINE_INTERVAL_S
            line = f"{self._text}: {progress.share:.0%}, {facts(progress)}"
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def facts(progress: Progress) -> str:
    """How many changes, or what is waited for; and why it does not get on, if it does not."""
    if progress.trouble:
        return f"{progress.change_count:,} changes, tried again: {progress.trouble}"
    if not progress.has_begun:
        return "waiting for the pipeline"
    return f"{progress.change_count:,} changes"
