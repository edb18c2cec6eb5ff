"""A transaction of the log that is made here, and not by Postgres: the rows of a drain.

Little is kept in memory: what is more goes to parts, which the log forgets if the transaction does
not come to its end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tailrace.capture.assembly import FrameBuffer
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.failpoint import failpoint
from tailrace.log import Header
from tailrace.log.header import Note
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US

PART_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a drain stands in the log."""

    position: Lsn
    xid: int
    commit_ts_us: int


class Taking:
    """One transaction of the log that is being put together; parts that were put are forgotten if
    it does not come to its end.
    """

    def __init__(self, writer: TranslatingWriter, *, xid: int) -> None:
        self.xid = xid
        self._writer = writer
        self._frames = FrameBuffer()
        self._frames.add(Frames.of([b"B" + struct.pack(">QqI", 0, 0, xid)]))
        self._has_parts = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._writer.discard_parts()

    def add(self, frames: Frames) -> None:
        """A run of frames; so much is kept in memory, and no more."""
        self._frames.add(frames)
        if self._frames.data_bytes >= PART_BYTES:
            self._writer.put_part(self._frames.take(), is_in_order=True)
            self._has_parts = True
            failpoint("drain.after_part")

    def end(self, moment: Moment, prefix: str, content: str, note: Note) -> Header:
        """Append it; durable on return."""
        ts_us = moment.commit_ts_us - POSTGRES_EPOCH_US
        message = b"M" + struct.pack(">BQ", 1, moment.position.wal) + prefix.encode() + b"\0"
        message += struct.pack(">I", len(content)) + content.encode()
        commit = b"C" + struct.pack(">BQQq", 0, moment.position, moment.position, ts_us)
        self._frames.add(Frames.of([message]))
        if self._has_parts:
            self._writer.put_part(self._frames.take(), is_in_order=True)
        self._frames.add(Frames.of([commit]))
        return self._writer.append(self._frames.take(), note)
