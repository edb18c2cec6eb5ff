"""The offset of every change in a run of frames.

Invariant: ordinals count the row changes of a transaction from 0, one for each row and one for each
table of a Truncate. `decode` numbers the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.postgres.integers import steps


@dataclass(frozen=True, slots=True)
class ChangeOffsets:
    """For each frame, how many changes it holds and the offset of the first.

    `commit_lsn` is 0 while the transaction is open. A frame without a change has the offset that
    the next change would have.
    """

    counts: NDArray[np.int64]
    commit_lsn: NDArray[np.int64]
    ordinal: NDArray[np.int64]

    @classmethod
    def of(cls, frames: Frames) -> ChangeOffsets:
        """Number the changes of whole transactions; raises SegmentCorrupt."""
        ends = frames.transactions
        if not len(ends.last_frame) or ends.last_frame[-1] != len(frames) - 1:
            raise SegmentCorrupt("a segment does not end with a commit")
        counts = frames.change_counts()
        sizes = steps(ends.last_frame, since=-1)
        before = np.cumsum(counts) - counts
        first_frame = ends.last_frame - sizes + 1
        return cls(
            counts, np.repeat(ends.end_lsn, sizes), before - np.repeat(before[first_frame], sizes)
        )

    @classmethod
    def of_part(cls, frames: Frames, *, first_ordinal: int, commit_lsn: int = 0) -> ChangeOffsets:
        """Number the changes of a piece of one transaction."""
        counts = frames.change_counts()
        commits = np.full(len(frames), commit_lsn, dtype=np.int64)
        return cls(counts, commits, np.cumsum(counts) - counts + first_ordinal)

    def at(self, frame: int) -> Offset:
        """The offset of one frame's first change."""
        return Offset(Lsn(self.commit_lsn[frame]), int(self.ordinal[frame]))

    def last_at(self, frame: int) -> Offset:
        """The offset of one frame's last change."""
        first = self.at(frame)
        return Offset(first.commit_lsn, first.ordinal + int(self.counts[frame]) - 1)

    def is_after(self, offset: Offset) -> NDArray[np.bool_]:
        """For each frame, whether it holds a change after `offset`."""
        is_later = self.commit_lsn > offset.commit_lsn
        is_same = self.commit_lsn == offset.commit_lsn
        is_later |= is_same & (self.ordinal + self.counts - 1 > offset.ordinal)
        return is_later & (self.counts > 0)
