"""Holds a replay to so many changes a second."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """`rate` is 0 for no limit. `wait` waits so many seconds, or less if told to stop."""

    def __init__(
        self,
        rate: int,
        wait: Callable[[float], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._wait = wait
        self._clock = clock
        self._due = clock()

    def passed(self, change_count: int) -> None:
        """So many more were delivered: wait until it is time for the next."""
        if self._rate:
            self._due = max(self._due, self._clock() - 1.0) + change_count / self._rate
            self._wait(max(0.0, self._due - self._clock()))
