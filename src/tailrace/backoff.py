"""How long to wait before trying again: exponential, with jitter, from an injected random."""

from __future__ import annotations

from random import Random


class Backoff:
    """Each failure doubles the most that is waited, up to a limit; a success starts over."""

    def __init__(self, random: Random, *, first_s: float = 0.2, limit_s: float = 10.0) -> None:
        self._random = random
        self._first_s = first_s
        self._limit_s = limit_s
        self._failures = 0

    def next_s(self) -> float:
        """Note a failure; returns how long to wait."""
        most = min(self._limit_s, self._first_s * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        return self._random.uniform(most / 2, most)

    def reset(self) -> None:
        """Note a success."""
        self._failures = 0


def full_jitter_s(random: Random, failures: int, *, first_s: float, limit_s: float) -> float:
    """How long one of many waits after so many failures: anything up to the most, so that they do
    not come back together.
    """
    return random.uniform(0.0, min(limit_s, first_s * 2 ** min(failures - 1, 30)))
