"""Writes that are fed by reads of the same library, as many at once as it can bear.

The embedded library works on a fixed number of threads. A write asks for its rows on one of them;
if they are read from a table only then, that thread waits for the others. If all of them waited,
none would ever go on: so one is always left.
"""

from __future__ import annotations

import os
from threading import BoundedSemaphore
from typing import Final

_VARIABLE: Final = "TOKIO_WORKER_THREADS"
"""Where the library looks for the number of its threads, before it is used for the first time."""


# Only Linux says which cores a process may use.
CORES: Final = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)


def _thread_count() -> int:
    """At least two; not left to the library, which also counts what a container may use."""
    told = os.environ.get(_VARIABLE, "")
    return max(2, int(told) if told.isdecimal() else CORES)


THREADS: Final = _thread_count()
os.environ[_VARIABLE] = str(THREADS)

FEEDING: Final = BoundedSemaphore(THREADS - 1)
"""To be held while a table is written from what is read meanwhile."""
