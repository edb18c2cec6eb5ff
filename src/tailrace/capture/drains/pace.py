"""How soon to look at the buffers again, after a look that brought little.

While some transaction stays open for hours Postgres must keep the dead rows of a buffer, and each
look passes all of them. So a session rests four times as long as it has worked in vain: at most a
fifth of its time goes that way, however large the buffers are. What is fruitful is not counted:
whoever rests after that as well is overtaken by a writer who is a fifth as fast as a drain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

RESTS: Final = 4.0

FRUITFUL_PART: Final = 0.25
"""A look is not in vain at all if so much of what it passed was wanted. Sizes are compared that are
alike and not the same, and a wrong guess must not hold up a drain that is busy."""

SMALL_BYTES: Final = 32 << 20
"""Nor if it has passed so little: then something else took its time, such as the log."""


def rest_s(took_s: float, *, wanted_bytes: int, passed_bytes: int) -> float:
    """For how long to rest after a look that took so long; so much of what it passed was wanted.

    >>> rest_s(2.0, wanted_bytes=0, passed_bytes=1 << 30)
    8.0
    >>> rest_s(2.0, wanted_bytes=1 << 28, passed_bytes=1 << 30)
    0.0
    >>> rest_s(2.0, wanted_bytes=0, passed_bytes=SMALL_BYTES)
    0.0
    """
    if passed_bytes <= SMALL_BYTES:
        return 0.0
    return RESTS * took_s * max(0.0, 1 - wanted_bytes / (FRUITFUL_PART * passed_bytes))


class Pace:
    """When the next look is due. `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took_s = 0.0
        self._due_at = clock()

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        return self._clock() >= self._due_at

    @contextmanager
    def looking(self) -> Iterator[None]:
        """What is done meanwhile is part of a look."""
        began = self._clock()
        try:
            yield
        finally:
            self._took_s += self._clock() - began

    def rest(self, *, wanted_bytes: int, passed_bytes: int) -> None:
        """The look is over; it has passed so much for what was wanted of it."""
        took_s, self._took_s = self._took_s, 0.0
        pause_s = rest_s(took_s, wanted_bytes=wanted_bytes, passed_bytes=passed_bytes)
        self._due_at = self._clock() + pause_s
