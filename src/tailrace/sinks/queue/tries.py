"""How often each message of a batch was tried, and when what was put off is due. Has no clock."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

from tailrace.backoff import full_jitter_s
from tailrace.sinks.queue.limits import WindowLimits


class Tries:
    """Messages are known by their places in the batch."""

    def __init__(self, limits: WindowLimits, random: Random) -> None:
        self._limits = limits
        self._random = random
        self._tries: dict[int, tuple[int, float]] = {}
        self._doubts: Counter[int] = Counter()
        self._put_off: list[tuple[float, list[int]]] = []
        self.retry_count = 0
        """How many messages were to be sent once more."""

    @property
    def next_at(self) -> float | None:
        """When the first of what is put off is due."""
        return self._put_off[0][0] if self._put_off else None

    def attempt_count(self, at: int) -> int:
        """How often the message has failed."""
        return self._tries.get(at, (0, 0.0))[0]

    def begin(self, at: int, now: float) -> None:
        """The message is tried for the first time, or was left to itself since."""
        self._tries.setdefault(at, (0, now))

    def failed(self, at: int, *, is_suspect: bool = False) -> None:
        """It was not taken; a mere suspect was refused with others, any of which may be meant, and
        has used up none of its tries.
        """
        count, first = self._tries[at]
        self._tries[at] = count + 1, first
        if is_suspect:
            self._doubts[at] += 1

    def is_exhausted(self, at: int, now: float) -> bool:
        """Whether it was tried often enough, or long enough."""
        count, first = self._tries[at]
        tried = count - self._doubts[at]
        return tried >= self._limits.attempt_count or now - first >= self._limits.elapsed_s

    def forget(self, at: int) -> None:
        """It is settled."""
        self._tries.pop(at, None)
        self._doubts.pop(at, None)

    def put_off(self, messages: list[int], now: float, *, wait_s: float) -> None:
        """Try these again, as one request: after a while, and after `wait_s` at the earliest."""
        limits = self._limits
        count = max(map(self.attempt_count, messages))
        jitter_s = full_jitter_s(
            self._random, count, first_s=limits.first_wait_s, limit_s=limits.wait_s_max
        )
        self.again(messages, now + max(jitter_s, wait_s))

    def again(self, messages: list[int], at: float) -> None:
        """Try these again, as one request, at that time."""
        heapq.heappush(self._put_off, (at, messages))
        self.retry_count += len(messages)

    def due(self, now: float) -> list[int]:
        """One request that is due; none if there is none."""
        if self._put_off and self._put_off[0][0] <= now:
            return heapq.heappop(self._put_off)[1]
        return []
