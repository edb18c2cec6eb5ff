"""How much may be sealed as soon as nothing more waits to be read, before it has its age.

Little that comes now and then is durable at once. A steady flow is not: one small file after the
other would take cores and disk from those who write to the database. What a file costs hardly
depends on what is in it, so a transaction weighs more than its bytes.
"""

from __future__ import annotations


class Trickle:
    """What is allowed grows by `bytes_max` in each `interval_s`, no further, and seals spend it."""

    def __init__(self, bytes_max: int, interval_s: float, *, now: float) -> None:
        self._bytes_max = bytes_max
        self._interval_s = interval_s
        self._at = now
        self._left_bytes = float(bytes_max)

    def allows(self, count: int, now: float) -> bool:
        """Whether so many bytes may be sealed at once: after a rest, whatever has come."""
        return min(count, self._bytes_max) <= self._allowed_bytes(now)

    def spend(self, count: int, now: float) -> None:
        """So many bytes are being sealed."""
        self._left_bytes = max(self._allowed_bytes(now) - count, 0.0)
        self._at = now

    def _allowed_bytes(self, now: float) -> float:
        grown = self._bytes_max * (now - self._at) / self._interval_s
        return min(self._left_bytes + grown, self._bytes_max)
