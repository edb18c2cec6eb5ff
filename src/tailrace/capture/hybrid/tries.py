"""Tries for a lock that writers hold: each is short, since all who come later wait behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import uniform
from typing import Final

from tailrace.errors import SourceError

TRIES: Final = 6
"""How often one turn tries to win a table's lock; its writers wait behind each of them."""

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.8
"""Between tries writers catch up: for longer each time, and never in step with their own rhythm."""


def try_often(act: Callable[[], None]) -> None:
    """Until it works, a few times; raises SourceError if none did, or if none can."""
    for number in range(TRIES):
        try:
            act()
            return
        except SourceError as error:
            if not error.retry or number == TRIES - 1:
                raise
        time.sleep(min(PAUSE_S * 2**number, PAUSE_S_MAX) * uniform(0.5, 1.5))
