"""A run of CopyData messages in one buffer, looked at by the whole buffer.

Invariant: message i is `data[bounds[i] + lead : bounds[i + 1]]`. What is read straight from a
socket has the five bytes of its wire header before each message; what libpq hands out has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt


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

    def without(self, places: NDArray[np.intp]) -> Messages:
        """All but the messages at these places, which are in order, copied together."""
        ends = [-1, *places.tolist(), len(self)]
        runs = [self.slice(after + 1, end) for after, end in pairwise(ends)]
        bounds = np.zeros(len(self) - len(places) + 1, dtype=np.int64)
        np.cumsum(np.concatenate([np.diff(run.bounds) for run in runs]), out=bounds[1:])
        data = np.concatenate([self.data[run.bounds[0] : run.bounds[-1]] for run in runs])
        return Messages(data, bounds, self.lead)

    @property
    def tags(self) -> NDArray[np.uint8]:
        """The first byte of every message; raises SegmentCorrupt if one has none."""
        if (self.bounds[1:] - self.bounds[:-1] <= self.lead).any():
            raise SegmentCorrupt("postgres sent an empty message")
        return self.data[self.bounds[:-1] + self.lead]
