"""Something that happens again and again while a soak runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass
class Happening:
    """At random times, about `every_s` apart, the first time at `at` of the monotonic clock."""

    what: Callable[[], None]
    every_s: float
    at: float

    def step(self, random: Random) -> None:
        """Let it happen if it is time to."""
        if time.monotonic() >= self.at:
            self.what()
            self.at = time.monotonic() + random.uniform(0.5, 1.5) * self.every_s
