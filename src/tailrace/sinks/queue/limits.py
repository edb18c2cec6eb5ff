"""How much of a batch may be on its way to a queue, and for how long it is tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """How much may be on its way, and how long a message is tried again.

    What is tried in vain is a dead letter if `parks_exhausted`, else it halts the stream.
    """

    message_count: int = 10_000
    bytes_max: int = 32 << 20
    attempt_count: int = 10
    elapsed_s: float = 15.0
    first_wait_s: float = 0.1
    wait_s_max: float = 5.0
    parks_exhausted: bool = False
