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


ASKS_S: Final = 5.0
"""Whoever has not asked for so long does not want to begin any more."""


class Query(Protocol):
    """What is asked of a query of Spark's."""

    @property
    def isActive(self) -> bool: ...

    @property
    def status(self) -> Mapping[str, object]: ...


class Starts:
    """The queries of one pipeline that begin, and the streams that wait for their turn, in the
    order in which they came. Not thread-safe.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._at_once = at_once or max(1, (os.cpu_count() or 1) // 2)
        self._beginning: list[tuple[Query, float]] = []
        self._waiting: dict[str, float] = {}

    def may_begin(self, stream: str, now: float) -> bool:
        """Whether it is a stream's turn; it asks again until it is. One that does not begin then
        has had its turn all the same.
        """
        self._beginning = [
            (query, until)
            for query, until in self._beginning
            if now < until and query.isActive and _is_beginning(query)
        ]
        self._waiting[stream] = now
        asking = [name for name, at in self._waiting.items() if now - at < ASKS_S]
        self._waiting = {name: self._waiting[name] for name in asking}
        is_next = asking.index(stream) < self._at_once - len(self._beginning)
        if is_next:
            del self._waiting[stream]
        return is_next

    def begun(self, query: Query, now: float) -> None:
        """A stream's query has been started; it is up once its process has answered."""
        self._beginning.append((query, now + PATIENCE_S))


def _is_beginning(query: Query) -> bool:
    """Whether it has not been seen doing anything else: one that is up asks for offsets as well,
    but waits or works in between.
    """
    return str(query.status["message"]).startswith(("Initializing", "Starting", "Getting offsets"))
