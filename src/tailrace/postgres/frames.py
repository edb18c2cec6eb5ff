"""A run of pgoutput frames in one buffer, looked at by the whole buffer and never row by row.

Invariant: frame i is `data[offsets[i]:offsets[i + 1]]`, is at least one byte long, and came with
`lsn[i]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt
from tailrace.postgres.integers import integers_at, overlapping
from tailrace.postgres.messages import WAL_DATA, Messages
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US, Tag

WAL_HEADER_BYTES: Final = 25
"""An XLogData message is `w`, three 8-byte integers (start, end, send time), then the frame."""

DATA_BYTES_MAX: Final = (1 << 31) - 1
"""An Arrow binary column counts its bytes in 32 bits, signed."""

BUFFERED: Final = np.uint64(1 << 63)
"""The top bit of `lsn`: the frame was made of a buffered row, whose number the other bits are."""

_COLUMNS: Final[dict[str, pa.DataType]] = {"lsn": pa.uint64(), "frame": pa.binary()}
ARROW_SCHEMA: Final = pa.schema(_COLUMNS)

_COMMIT_BYTES: Final = 26
_BEGIN_BYTES: Final = 21
_TRUNCATE_BYTES_MIN: Final = 6

# How many row changes a frame of each tag holds; Truncate is counted apart.
_CHANGES_OF_TAG: Final = np.zeros(256, dtype=np.int64)
_CHANGES_OF_TAG[[Tag.INSERT, Tag.UPDATE, Tag.DELETE]] = 1


@dataclass(frozen=True, slots=True)
class Transactions:
    """What the Commit frames of a run say, one entry per transaction, in commit order."""

    last_frame: NDArray[np.int64]
    end_lsn: NDArray[np.int64]
    commit_ts_us: NDArray[np.int64]


@dataclass(frozen=True)
class Frames:
    """Frames in the order received."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lsn: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lsn)

    @property
    def data_bytes(self) -> int:
        """How many bytes of frames there are."""
        return int(self.offsets[-1] - self.offsets[0])

    @cached_property
    def tags(self) -> NDArray[np.uint8]:
        """The first byte of every frame."""
        return self.data[self.offsets[:-1]]

    @property
    def is_buffered(self) -> NDArray[np.bool_]:
        """For each frame, whether it was made of a row that a trigger has buffered."""
        return self.lsn >= BUFFERED

    @property
    def buffer_seqs(self) -> NDArray[np.int64]:
        """The number of the buffered row that each frame was made of, where `is_buffered`."""
        return (self.lsn & ~BUFFERED).astype(np.int64)

    def frame(self, index: int) -> bytes:
        """One frame, copied out."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    @classmethod
    def empty(cls) -> Self:
        """No frames."""
        return cls(np.empty(0, np.uint8), np.zeros(1, np.int64), np.empty(0, np.uint64))

    @classmethod
    def from_wal_messages(cls, messages: Messages) -> Self:
        """Cut the 25-byte headers off XLogData messages; keepalives among them are left out."""
        # Not above: processes of Spark that only plan load this module, and never receive.
        import pyarrow.compute as pc

        is_data = messages.tags == WAL_DATA
        if not is_data.any():
            return cls.empty()
        data, bounds = messages.data, messages.bounds
        cut = messages.lead + WAL_HEADER_BYTES
        if ((bounds[1:] - bounds[:-1] > cut) != is_data).any():
            raise SegmentCorrupt("postgres sent a message without a frame")
        buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds).data), pa.py_buffer(data.data)]
        whole = pa.Array.from_buffers(pa.large_binary(), len(messages), buffers)
        # Without an end, pyarrow takes one that overflows.
        _, cut_offsets, kept = pc.binary_slice(whole, cut, int(bounds[-1])).buffers()
        offsets = np.frombuffer(memoryview(cut_offsets or b""), np.int64)
        starts = bounds[:-1] + messages.lead
        if not is_data.all():
            # A keepalive is shorter than the header, so nothing is left of it.
            offsets = np.append(offsets[:-1][is_data], offsets[-1])
            starts = starts[is_data]
        lsn = overlapping(data, ">u8")[starts + 1].astype(np.uint64)
        return cls(np.frombuffer(memoryview(kept or b""), np.uint8), offsets, lsn)

    @classmethod
    def of(cls, frames: Sequence[bytes], lsn: Sequence[int] | None = None) -> Self:
        """Frames given one by one: for tests and for frames that we make ourselves."""
        offsets = np.zeros(len(frames) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)), out=offsets[1:])
        lsns = np.array(lsn if lsn is not None else [0] * len(frames), dtype=np.uint64)
        return cls(np.frombuffer(b"".join(frames), dtype=np.uint8), offsets, lsns)

    @classmethod
    def concat(cls, runs: Sequence[Frames]) -> Self:
        """One run after the other."""
        if not runs:
            return cls.empty()
        if len(runs) == 1 and isinstance(runs[0], cls):
            return runs[0]
        data = [run.data[run.offsets[0] : run.offsets[-1]] for run in runs]
        offsets = np.zeros(sum(len(run) for run in runs) + 1, dtype=np.int64)
        np.cumsum(np.concatenate([np.diff(run.offsets) for run in runs]), out=offsets[1:])
        return cls(np.concatenate(data), offsets, np.concatenate([run.lsn for run in runs]))

    def slice(self, start: int, stop: int) -> Frames:
        """Frames `start` to `stop`, sharing this buffer."""
        if start == 0 and stop == len(self):
            # With what is already known of them.
            return self
        return Frames(self.data, self.offsets[start : stop + 1], self.lsn[start:stop])

    def select(self, keep: NDArray[np.bool_]) -> Frames:
        """Only the frames for which `keep` is true."""
        sizes = np.diff(self.offsets)
        data = self.data[self.offsets[0] : self.offsets[-1]]
        offsets = np.zeros(int(keep.sum()) + 1, dtype=np.int64)
        np.cumsum(sizes[keep], out=offsets[1:])
        return Frames(data[np.repeat(keep, sizes)], offsets, self.lsn[keep])

    def to_arrow(self) -> pa.RecordBatch:
        """As the two columns of a segment; raises OverflowError past their 2 GiB."""
        if self.data_bytes > DATA_BYTES_MAX:
            raise OverflowError(f"{self.data_bytes} bytes of frames do not fit a segment")
        offsets = (self.offsets - self.offsets[0]).astype(np.int32)
        data = np.ascontiguousarray(self.data[self.offsets[0] : self.offsets[-1]])
        buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
        frame = pa.Array.from_buffers(pa.binary(), len(self), buffers)
        lsn = pa.Array.from_buffers(
            pa.uint64(), len(self), [None, pa.py_buffer(np.ascontiguousarray(self.lsn).data)]
        )
        return pa.RecordBatch.from_arrays([lsn, frame], schema=ARROW_SCHEMA)

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch) -> Self:
        """Read what `to_arrow` wrote, without copying the frames; raises SegmentCorrupt."""
        try:
            # Arrow itself believes the sizes that a damaged file gives.
            batch.validate()
        except pa.ArrowException as error:
            raise SegmentCorrupt("a segment's columns are damaged") from error
        frame = batch.column(1)
        if frame.null_count or batch.column(0).null_count:
            raise SegmentCorrupt("a segment holds a null")
        if len(batch) == 0:
            return cls.empty()
        _, offset_buffer, data_buffer = frame.buffers()
        last = frame.offset + len(frame) + 1
        stored = np.frombuffer(memoryview(offset_buffer or b""), dtype=np.int32, count=last)
        offsets = stored[frame.offset :].astype(np.int64)
        data = np.frombuffer(memoryview(data_buffer or b""), dtype=np.uint8)
        if (np.diff(offsets) < 1).any() or offsets[0] < 0 or offsets[-1] > len(data):
            raise SegmentCorrupt("a segment holds an empty or misplaced frame")
        return cls(data, offsets, batch.column(0).to_numpy())

    def integers(self, frames: NDArray[np.intp], at: int, dtype: str) -> NDArray[np.int64]:
        """The big-endian integer at byte `at` of each of these frames; `dtype` as `>u8`.

        The frames must be that long: `frames_of` makes sure.
        """
        return integers_at(self.data, self.offsets[frames] + at, dtype)

    @cached_property
    def transactions(self) -> Transactions:
        """Where transactions end, and what their Commit frames say."""
        commits = self.frames_of(Tag.COMMIT, size=_COMMIT_BYTES)
        return Transactions(
            last_frame=commits.astype(np.int64),
            end_lsn=self.integers(commits, 10, ">u8"),
            commit_ts_us=self.integers(commits, 18, ">i8") + POSTGRES_EPOCH_US,
        )

    def xids(self) -> NDArray[np.int64]:
        """The xid of every Begin frame, in order."""
        return self.integers(self.frames_of(Tag.BEGIN, size=_BEGIN_BYTES), 17, ">u4")

    def frames_of(self, *tags: Tag, size: int) -> NDArray[np.intp]:
        """The places of all frames with one of these tags, each at least `size` bytes long."""
        is_asked = self.tags == tags[0]
        for tag in tags[1:]:
            is_asked |= self.tags == tag
        places = np.flatnonzero(is_asked)
        if len(places) and (self.offsets[places + 1] - self.offsets[places] < size).any():
            names = " or ".join(tag.name.lower() for tag in tags)
            raise SegmentCorrupt(f"a frame ends too early: {names}")
        return places

    def change_counts(self) -> NDArray[np.int64]:
        """How many row changes each frame holds: one for a row, one per table for a Truncate."""
        counts = _CHANGES_OF_TAG[self.tags]
        truncates = self.frames_of(Tag.TRUNCATE, size=_TRUNCATE_BYTES_MIN)
        if len(truncates):
            counts[truncates] = self.integers(truncates, 1, ">u4")
        return counts
