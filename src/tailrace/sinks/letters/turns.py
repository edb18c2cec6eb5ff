"""A lock for two who work in turns."""

from __future__ import annotations

from threading import Lock
from types import TracebackType


class Turns:
    """Whoever waits for it gets it before whoever has just let go of it: with a plain lock, one
    who takes it again at once would keep it.
    """

    def __init__(self) -> None:
        self._next = Lock()
        self._held = Lock()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody is to be next, or about to be let in."""
        return self._next.locked()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.release()
