"""Which row changes a run of frames holds, and the offset of each.

Invariant: ordinals count the row changes of a whole transaction from 0, one for each row and one
for each table of a Truncate, whatever tables or columns a reader asks for; so an offset names the
same change for every reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.decode.corrupt import corrupt
from tailrace.decode.integers import integers_at
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag

ROW_TAGS: Final = (Tag.INSERT, Tag.UPDATE, Tag.DELETE)

# The smallest size a frame of each tag can have; 0 marks a byte that is no tag.
_BYTES_MIN: Final = np.zeros(256, dtype=np.int64)
_BYTES_MIN[[Tag.BEGIN, Tag.COMMIT]] = (21, 26)
_BYTES_MIN[list(ROW_TAGS)] = 8
_BYTES_MIN[Tag.TRUNCATE] = 6
_BYTES_MIN[[Tag.RELATION, Tag.TYPE, Tag.ORIGIN, Tag.MESSAGE]] = 1

_ROW_OID_AT: Final = 1
_TRUNCATE_OIDS_AT: Final = 6
_OID_BYTES: Final = 4

# Commit times are timestamps of Postgres' own clock: outside of years 1 to 9999 they are damage.
_COMMIT_TS_US_MIN: Final = -62_135_596_800_000_000
_COMMIT_TS_US_MAX: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The one transaction of which the given frames are a part; its Begin and Commit may lie in
    other parts.
    """

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    first_ordinal: int


@dataclass(frozen=True, slots=True)
class Transactions:
    """One entry for each transaction, in commit order; `begin_ordinal` is the ordinal of its first
    change here.
    """

    commit_lsn: NDArray[np.int64]
    commit_ts_us: NDArray[np.int64]
    xid: NDArray[np.int64]
    begin_ordinal: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Changes:
    """One entry for each row change, in offset order. `transaction` is an index into
    `transactions`.
    """

    frame: NDArray[np.intp]
    oid: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    transaction: NDArray[np.intp]
    transactions: Transactions

    def __len__(self) -> int:
        return len(self.frame)

    def select(self, keep: NDArray[np.bool_]) -> Changes:
        """Only the changes for which `keep` is true."""
        if keep.all():
            return self
        return Changes(
            self.frame[keep],
            self.oid[keep],
            self.ordinal[keep],
            self.transaction[keep],
            self.transactions,
        )

    def between(self, after: Offset, upto: Offset) -> Changes:
        """Only the changes in `(after, upto]`."""
        lsn = self.transactions.commit_lsn[self.transaction]
        later = (lsn > after.commit_lsn) | (
            (lsn == after.commit_lsn) & (self.ordinal > after.ordinal)
        )
        reached = (lsn < upto.commit_lsn) | (
            (lsn == upto.commit_lsn) & (self.ordinal <= upto.ordinal)
        )
        return self.select(later & reached)


def list_changes(frames: Frames, open_transaction: OpenTransaction | None) -> Changes:
    """Every row change of these frames with its offset; raises SegmentCorrupt."""
    tags = frames.tags
    _check_sizes(frames, tags)
    counts = _count_changes(frames, tags)
    rows = np.flatnonzero(counts)
    if open_transaction is None:
        transactions = _read_transactions(frames, tags)
        transaction = np.cumsum(tags == Tag.BEGIN)[rows] - 1
        outside = transaction != np.cumsum(tags == Tag.COMMIT)[rows]
        if outside.any():
            raise corrupt(frames, int(rows[outside.argmax()]), "a change outside of a transaction")
    else:
        transactions = _of_part(frames, tags, open_transaction)
        transaction = np.zeros(len(rows), dtype=np.intp)
    return _expand(frames, counts, rows, transaction, transactions)


def _check_sizes(frames: Frames, tags: NDArray[np.uint8]) -> None:
    least = _BYTES_MIN[tags]
    if (least == 0).any():
        raise corrupt(frames, int((least == 0).argmax()), "an unknown tag")
    short = np.diff(frames.offsets) < least
    if short.any():
        raise corrupt(frames, int(short.argmax()), "an early end")


def _count_changes(frames: Frames, tags: NDArray[np.uint8]) -> NDArray[np.int64]:
    counts = frames.change_counts()
    truncates = np.flatnonzero(tags == Tag.TRUNCATE)
    sizes = frames.offsets[truncates + 1] - frames.offsets[truncates]
    wrong = sizes != _TRUNCATE_OIDS_AT + _OID_BYTES * counts[truncates]
    if wrong.any():
        raise corrupt(frames, int(truncates[wrong.argmax()]), "a wrong count of tables")
    return counts


def _read_transactions(frames: Frames, tags: NDArray[np.uint8]) -> Transactions:
    borders = np.flatnonzero((tags == Tag.BEGIN) | (tags == Tag.COMMIT))
    expected = np.where(np.arange(len(borders)) % 2 == 0, Tag.BEGIN, Tag.COMMIT)
    odd = tags[borders] != expected
    if odd.any():
        raise corrupt(frames, int(borders[odd.argmax()]), "a begin or commit out of place")
    if len(borders) % 2:
        raise corrupt(frames, int(borders[-1]), "a begin without a commit")
    ends = frames.transactions()
    found = Transactions(
        ends.end_lsn, ends.commit_ts_us, frames.xids(), np.zeros(len(ends.end_lsn), np.int64)
    )
    _check_transactions(frames, found, borders[1::2])
    return found


def _check_transactions(frames: Frames, found: Transactions, commits: NDArray[np.intp]) -> None:
    # A negative position is one whose top bit is set: past the last era.
    wrong = np.diff(found.commit_lsn, prepend=-1) <= 0
    wrong |= found.commit_lsn < 0
    if wrong.any():
        raise corrupt(frames, int(commits[wrong.argmax()]), "a commit position that does not rise")
    wrong = (found.commit_ts_us < _COMMIT_TS_US_MIN) | (found.commit_ts_us > _COMMIT_TS_US_MAX)
    if wrong.any():
        raise corrupt(frames, int(commits[wrong.argmax()]), "an impossible commit time")


def _of_part(frames: Frames, tags: NDArray[np.uint8], part: OpenTransaction) -> Transactions:
    begins = np.flatnonzero(tags == Tag.BEGIN)
    commits = np.flatnonzero(tags == Tag.COMMIT)
    if len(begins) and (begins[-1] > 0 or part.first_ordinal > 0):
        raise corrupt(frames, int(begins[-1]), "a begin out of place")
    if len(commits):
        if commits[0] < len(frames) - 1:
            raise corrupt(frames, int(commits[0]), "a commit out of place")
        if frames.transactions().end_lsn[0] != part.commit_lsn:
            raise corrupt(frames, int(commits[0]), "the commit of another transaction")
    return Transactions(
        np.array([part.commit_lsn], dtype=np.int64),
        np.array([part.commit_ts_us], dtype=np.int64),
        np.array([part.xid], dtype=np.int64),
        np.array([part.first_ordinal], dtype=np.int64),
    )


def _expand(
    frames: Frames,
    counts: NDArray[np.int64],
    rows: NDArray[np.intp],
    transaction: NDArray[np.intp],
    transactions: Transactions,
) -> Changes:
    """One entry for each change: a Truncate of several tables becomes as many."""
    per_frame = counts[rows]
    oid_at = frames.offsets[rows] + _ROW_OID_AT
    truncated = frames.data[frames.offsets[rows]] == Tag.TRUNCATE
    if truncated.any():
        oid_at += np.where(truncated, _TRUNCATE_OIDS_AT - _ROW_OID_AT, 0)
        first = np.repeat(np.cumsum(per_frame) - per_frame, per_frame)
        oid_at = np.repeat(oid_at, per_frame) + _OID_BYTES * (np.arange(len(first)) - first)
        rows, transaction = np.repeat(rows, per_frame), np.repeat(transaction, per_frame)
    oid = integers_at(frames.data, oid_at, ">u4")
    first_place = np.searchsorted(transaction, np.arange(len(transactions.xid)))
    ordinal = np.arange(len(rows)) + (transactions.begin_ordinal - first_place)[transaction]
    return Changes(rows, oid, ordinal, transaction, transactions)
