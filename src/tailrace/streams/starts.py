"""Lets queries begin one after the other, as far as the machine can bear it.

For each query Spark starts a Python process that plans it, and gives up on one that does not answer
within ten seconds. Many at once on a busy machine would all be too late, and again at the next try.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Protocol

PATIENCE_S: Final = 10.0
"""Later than that nobody waits for a query that has begun: Spark does not either."""


class Query(Protocol):
    """What is asked of a query of Spark's."""

    @property
    def isActive(self) -> bool: ...

    @property
    def status(self) -> Mapping[str, object]: ...


class Starts:
    """The queries of one pipeline that are beginning. Not thread-safe."""

    def __init__(self, at_once: int | None = None) -> None:
        self._at_once = at_once or max(1, (os.cpu_count() or 1) // 2)
        self._beginning: list[tuple[Query, float]] = []

    def has_room(self, now: float) -> bool:
        """Whether another one may begin."""
        self._beginning = [
            (query, until)
            for query, until in self._beginning
            if now < until and query.isActive and _is_beginning(query)
        ]
        return len(self._beginning) < self._at_once

    def begun(self, query: Query, now: float) -> None:
        """One has been started; it is up once its process has answered."""
        self._beginning.append((query, now + PATIENCE_S))


def _is_beginning(query: Query) -> bool:
    """Whether it has not been seen doing anything else: one that is up asks for offsets as well,
    but waits or works in between.
    """
    return str(query.status["message"]).startswith(("Initializing", "Starting", "Getting offsets"))
