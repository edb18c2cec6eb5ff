"""The one way this layer says that frames are damaged: with the position at which they are."""

from __future__ import annotations

from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames


def corrupt(frames: Frames, index: int, what: str) -> SegmentCorrupt:
    """The error for frame `index`: what is wrong with it, and its position."""
    return SegmentCorrupt(
        f"{what} in frame {index} at {_place(frames, index)}",
        hint="run `tailrace log verify` to find the damaged segment",
    )


def _place(frames: Frames, index: int) -> str:
    if frames.is_buffered[index]:
        return f"buffered row {frames.buffer_seqs[index]}"
    return str(Lsn(int(frames.lsn[index])))
