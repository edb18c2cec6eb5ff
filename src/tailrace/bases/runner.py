"""The seam between what has to be read and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tailrace.bases.reading import Outcome, Reading, read_stretches
from tailrace.bases.stretch import Stretch
from tailrace.storage import Store


class Runner(Protocol):
    """Reads stretches side by side; each one's outcome is returned, in any order.

    `run` is called from one thread at a time and returns when all are done. `cancel` may be called
    from another one: `run` then ends soon, and raises.
    """

    @property
    def width(self) -> int:
        """How many stretches are read at the same time."""
        ...

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        """Read them all."""
        ...

    def cancel(self) -> None:
        """Give up what is under way."""
        ...


class ThreadRunner:
    """Reads in threads of this process: for small things, where Spark would not pay."""

    def __init__(self, width: int = 2) -> None:
        self.width = width
        self._is_cancelled = False

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        """See `Runner`."""
        self._is_cancelled = False
        with ThreadPoolExecutor(self.width, "tailrace-base") as pool:
            return list(pool.map(lambda each: self._run_one(reading, store, each), stretches))

    def cancel(self) -> None:
        """See `Runner`."""
        self._is_cancelled = True

    def _run_one(self, reading: Reading, store: Store, stretch: Stretch) -> Outcome:
        if self._is_cancelled:
            raise InterruptedError("cancelled")
        (outcome,) = read_stretches(reading, store, [stretch])
        return outcome
