"""The transactions that a run of frames holds: whole ones, or a part of a single huge one.

Invariant: positions are those of Commit.end_lsn and rise from one transaction to the next. Frames
in which they do not are damaged, or are not in the order of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.decode.corrupt import corrupt
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.integers import integers_at
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US, Tag

# Where the fields lie in their frames.
_BEGIN_XID_AT: Final = 17
_COMMIT_END_LSN_AT: Final = 10
_COMMIT_TS_AT: Final = 18

# Commit times come from the server's own clock: outside of the years 1 to 9999 they are damage.
_COMMIT_TS_US_MIN: Final = -62_135_596_800_000_000
_COMMIT_TS_US_MAX: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The one transaction of which the given frames are a part.

    Its Begin and Commit may lie in other parts. `commit_ts_us` counts from 1970, `first_ordinal` is
    that of the part's first change.
    """

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    first_ordinal: int


@dataclass(frozen=True, slots=True)
class Transactions:
    """One entry for each transaction, in commit order."""

    commit_lsn: NDArray[np.int64]
    commit_ts_us: NDArray[np.int64]
    xid: NDArray[np.int64]
    first_ordinal: NDArray[np.int64]

    @classmethod
    def read(cls, frames: Frames, tags: NDArray[np.uint8]) -> Transactions:
        """What the Begin and Commit frames of whole transactions say; raises SegmentCorrupt."""
        borders = np.flatnonzero((tags == Tag.BEGIN) | (tags == Tag.COMMIT))
        expected = np.where(np.arange(len(borders)) % 2 == 0, Tag.BEGIN, Tag.COMMIT)
        odd = tags[borders] != expected
        if odd.any():
            raise corrupt(frames, int(borders[odd.argmax()]), "a begin or commit out of place")
        if len(borders) % 2:
            raise corrupt(frames, int(borders[-1]), "a begin without a commit")
        begins, commits = borders[0::2], borders[1::2]
        lsn = _field(frames, commits, _COMMIT_END_LSN_AT, ">u8")
        ts_us = _field(frames, commits, _COMMIT_TS_AT, ">i8") + POSTGRES_EPOCH_US
        # A position past the last era has its top bit set, and so is negative here.
        _demand((np.diff(lsn, prepend=0) > 0) & (lsn > 0), frames, commits, "a falling position")
        sane = (ts_us >= _COMMIT_TS_US_MIN) & (ts_us <= _COMMIT_TS_US_MAX)
        _demand(sane, frames, commits, "an impossible commit time")
        xid = _field(frames, begins, _BEGIN_XID_AT, ">u4")
        return cls(lsn, ts_us, xid, np.zeros(len(xid), dtype=np.int64))

    @classmethod
    def of_part(
        cls, frames: Frames, tags: NDArray[np.uint8], part: OpenTransaction
    ) -> Transactions:
        """The one that all of these frames belong to; raises SegmentCorrupt if they cannot."""
        begins, commits = np.flatnonzero(tags == Tag.BEGIN), np.flatnonzero(tags == Tag.COMMIT)
        first = (begins == 0) & (part.first_ordinal == 0)
        _demand(first, frames, begins, "a begin inside of a transaction")
        _demand(commits == len(frames) - 1, frames, commits, "a commit inside of a transaction")
        lsn = _field(frames, commits, _COMMIT_END_LSN_AT, ">u8")
        _demand(lsn == part.commit_lsn, frames, commits, "the commit of another transaction")
        values = (part.commit_lsn, part.commit_ts_us, part.xid, part.first_ordinal)
        return cls(*(np.array([value], dtype=np.int64) for value in values))


def _field(frames: Frames, places: NDArray[np.intp], at: int, dtype: str) -> NDArray[np.int64]:
    return integers_at(frames.data, frames.offsets[places] + at, dtype)


def _demand(sound: NDArray[np.bool_], frames: Frames, places: NDArray[np.intp], what: str) -> None:
    if not sound.all():
        raise corrupt(frames, int(places[sound.argmin()]), what)
