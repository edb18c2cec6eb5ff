"""A run of CopyData messages in one buffer, looked at by the whole buffer.

Invariant: message i is `data[bounds[i] + lead : bounds[i + 1]]`. What is read straight from a
socket has the five bytes of its wire header before each message; what libpq hands out has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt

WAL_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
"""What a sender's messages begin with."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in the order received."""

    data: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    lead: int = 0

    @classmethod
    def of(cls, messages: Sequence[bytes | memoryview]) -> Self:
        """Messages given one by one."""
        bounds = np.zeros(len(messages) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)), out=bounds[1:])
        return cls(np.frombuffer(b"".join(messages), np.uint8), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def message(self, index: int) -> bytes:
        """One message, copied out."""
        return self.data[self.bounds[index] + self.lead : self.bounds[index + 1]].tobytes()

    def slice(self, start: int, stop: int) -> Messages:
        """Messages `start` to `stop`, sharing this buffer."""
        return Messages(self.data, self.bounds[start : stop + 1], self.lead)

    @property
    def tags(self) -> NDArray[np.uint8]:
        """The first byte of every message; raises SegmentCorrupt if one has none."""
        if (self.bounds[1:] - self.bounds[:-1] <= self.lead).any():
            raise SegmentCorrupt("postgres sent an empty message")
        return self.data[self.bounds[:-1] + self.lead]
