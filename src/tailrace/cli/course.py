"""The demo once everything has been started: wait, write, come to rest; a failed child ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tailrace.cli.children import Children
from tailrace.cli.gauges import Gauges
from tailrace.cli.screen import Screen
from tailrace.cli.shop import Writers
from tailrace.errors import TailraceError
from tailrace.model import Lsn
from tailrace.status import Report

START_TIMEOUT_S: Final = 300.0
REST_TIMEOUT_S: Final = 300.0
HALFWAY_S: Final = 30.0
_FRAME_S: Final = 0.5


class Course:
    """The steps of one demo; `logs` is where its children write theirs."""

    def __init__(
        self, gauges: Gauges, children: Children, stop: threading.Event, *, logs: Path
    ) -> None:
        self._gauges = gauges
        self._children = children
        self._stop = stop
        self._hint = f"see {logs / 'capture.log'} and {logs / 'pipeline.log'}"

    def wait(self, is_ready: Callable[[Report], bool]) -> bool:
        """Wait until everything is ready; False if told to stop."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready(self._report()):
            if time.monotonic() > deadline:
                raise TailraceError(f"not ready after {START_TIMEOUT_S:.0f} s", hint=self._hint)
            if self._stop.wait(_FRAME_S):
                return False
        return True

    def write(
        self,
        shop: Writers,
        screen: Screen,
        seconds: float | None,
        *,
        halfway: Callable[[], None] | None = None,
    ) -> None:
        """Let the shop trade, until its time is over or we are told to stop. What is to happen
        halfway happens under load; then trade goes on until every table comes from the WAL.
        """
        started = time.monotonic()
        deadline = float("inf") if seconds is None else started + seconds
        turn_at = started + HALFWAY_S if seconds is None else started + seconds / 2
        with shop:
            while time.monotonic() < deadline and not self._stop.is_set():
                if halfway is not None and time.monotonic() >= turn_at:
                    halfway()
                    halfway = None
                    self._hand_over(shop, screen)
                self._show(shop, screen)

    def _hand_over(self, shop: Writers, screen: Screen) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._stop.is_set():
            report = self._show(shop, screen)
            if report.source.tables and not report.source.by_trigger:
                return
            if time.monotonic() > deadline:
                raise TailraceError("tables are not handed over to the wal", hint=self._hint)

    def _show(self, shop: Writers, screen: Screen) -> Report:
        """One frame, and the pause until the next."""
        report = self._report()
        source = report.source
        phase = "writing"
        if source.by_trigger:
            phase += f", {len(source.by_trigger)} of {len(source.tables)} tables by triggers"
        screen.show(self._gauges.frame(phase, report, shop.written, shop.trouble))
        self._stop.wait(_FRAME_S)
        return report

    def rest(self, shop: Writers, screen: Screen, *, end: Lsn) -> None:
        """Wait until the log has everything up to `end`, and the lake everything logged."""
        deadline = time.monotonic() + REST_TIMEOUT_S
        while True:
            report = self._report()
            is_at_rest = (report.log.tip or 0) >= end and report.streams[0].lag_bytes == 0
            phase = "at rest" if is_at_rest else "coming to rest"
            screen.show(self._gauges.frame(phase, report, shop.written, ""))
            if is_at_rest:
                return
            if time.monotonic() > deadline:
                raise TailraceError(
                    f"the lake is not at rest after {REST_TIMEOUT_S:.0f} s", hint=self._hint
                )
            time.sleep(_FRAME_S)

    def _report(self) -> Report:
        child = self._children.ended
        if child is not None:
            raise TailraceError(child.error, hint=f"see {child.log}")
        return self._gauges.report()
