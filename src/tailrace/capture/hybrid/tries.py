"""Tries for a lock that writers hold. All who come later wait behind one who waits for it, so each
try is short at first, and there is more time between two than either takes.

A try may have to be longer than a transaction of the writers: with many of them, some have always
begun just before. So each waits for longer than the last, within a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import uniform
from typing import Final

from tailrace.errors import NotLeading, SourceError

GROWTH: Final = (1, 1, 2, 3, 5)
"""How long each try of one turn waits, as a multiple of `lock_timeout`."""

WAIT_MS_MAX: Final = 2_000
"""No try waits for longer, unless `lock_timeout` itself is more."""

PAUSE: Final = (1.0, 2.0)
"""How long writers then have to themselves, as a multiple of the wait; never in step with them."""


def try_often(act: Callable[[int], None], *, lock_timeout_ms: int) -> None:
    """Until it works, a few times: `act` is told how long to wait, in ms. Raises SourceError if
    none did, or if none can.
    """
    for number, growth in enumerate(GROWTH, start=1):
        wait_ms = max(min(growth * lock_timeout_ms, WAIT_MS_MAX), lock_timeout_ms)
        try:
            act(wait_ms)
            return
        except NotLeading:
            raise
        except SourceError as error:
            if not error.retry or number == len(GROWTH):
                raise
        time.sleep(wait_ms / 1000 * uniform(*PAUSE))
