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
from tailrace.decode.transactions import OpenTransaction, Transactions
from tailrace.model import Offset
from tailrace.postgres.frames import Frames
from tailrace.postgres.integers import integers_at
from tailrace.postgres.pgoutput import Tag

# The smallest size of a frame of each tag; 0 marks a byte that is no tag.
_BYTES_MIN: Final = np.zeros(256, dtype=np.int64)
_BYTES_MIN[[Tag.BEGIN, Tag.COMMIT]] = (21, 26)
_BYTES_MIN[[Tag.INSERT, Tag.UPDATE, Tag.DELETE]] = 8
_BYTES_MIN[Tag.TRUNCATE] = 6
_BYTES_MIN[[Tag.RELATION, Tag.TYPE, Tag.ORIGIN, Tag.MESSAGE]] = 1

_HAS_CHANGES: Final = np.zeros(256, dtype=np.bool_)
_HAS_CHANGES[[Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE]] = True

# Where the table's oid lies in a row's frame; a Truncate has a count and options before its oids.
_ROW_OID_AT: Final = 1
_TRUNCATE_COUNT_AT: Final = 1
_TRUNCATE_OIDS_AT: Final = 6
_OID_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Changes:
    """One entry for each row change, in offset order: its frame, its table, its place in its
    transaction, and its transaction's place in `transactions`."""

    frame: NDArray[np.intp]
    oid: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    transaction: NDArray[np.intp]
    transactions: Transactions

    def __len__(self) -> int:
        return len(self.frame)

    def between(self, after: Offset, upto: Offset) -> Changes:
        """Only the changes in `(after, upto]`."""
        keep = self._reached(upto) & ~self._reached(after)
        if keep.all():
            return self
        return Changes(
            self.frame[keep],
            self.oid[keep],
            self.ordinal[keep],
            self.transaction[keep],
            self.transactions,
        )

    def _reached(self, offset: Offset) -> NDArray[np.bool_]:
        lsn = self.transactions.commit_lsn[self.transaction]
        reached: NDArray[np.bool_] = lsn < offset.commit_lsn
        reached |= (lsn == offset.commit_lsn) & (self.ordinal <= offset.ordinal)
        return reached


def list_changes(
    frames: Frames, tags: NDArray[np.uint8], open_transaction: OpenTransaction | None
) -> Changes:
    """Every row change of these frames with its offset; `tags` are the frames' own. Raises
    SegmentCorrupt."""
    _check_sizes(frames, tags)
    rows = np.flatnonzero(_HAS_CHANGES[tags])
    if open_transaction is None:
        transactions = Transactions.read(frames, tags)
        transaction = np.cumsum(tags == Tag.BEGIN)[rows] - 1
        outside = transaction != np.cumsum(tags == Tag.COMMIT)[rows]
        if outside.any():
            raise corrupt(frames, int(rows[outside.argmax()]), "a change outside of a transaction")
    else:
        transactions = Transactions.of_part(frames, tags, open_transaction)
        transaction = np.zeros(len(rows), dtype=np.intp)
    rows, transaction, oid = _one_per_table(frames, tags, rows, transaction)
    first_change = np.searchsorted(transaction, np.arange(len(transactions.xid)))
    ordinal = np.arange(len(rows)) + (transactions.first_ordinal - first_change)[transaction]
    return Changes(rows, oid, ordinal, transaction, transactions)


def _check_sizes(frames: Frames, tags: NDArray[np.uint8]) -> None:
    least = _BYTES_MIN[tags]
    if not least.all():
        raise corrupt(frames, int(least.argmin()), "an unknown tag")
    short = np.diff(frames.offsets) < least
    if short.any():
        raise corrupt(frames, int(short.argmax()), "an early end")


def _one_per_table(
    frames: Frames,
    tags: NDArray[np.uint8],
    rows: NDArray[np.intp],
    transaction: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """One entry for each change and its table: a Truncate of several tables becomes as many."""
    oid_at = frames.offsets[rows] + _ROW_OID_AT
    truncates = tags[rows] == Tag.TRUNCATE
    if truncates.any():
        counts = np.ones(len(rows), dtype=np.int64)
        counts[truncates] = _truncate_counts(frames, rows[truncates])
        oid_at[truncates] += _TRUNCATE_OIDS_AT - _ROW_OID_AT
        rows, transaction = np.repeat(rows, counts), np.repeat(transaction, counts)
        number = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        oid_at = np.repeat(oid_at, counts) + _OID_BYTES * number
    return rows, transaction, integers_at(frames.data, oid_at, ">u4")


def _truncate_counts(frames: Frames, places: NDArray[np.intp]) -> NDArray[np.int64]:
    counts = integers_at(frames.data, frames.offsets[places] + _TRUNCATE_COUNT_AT, ">u4")
    sizes = frames.offsets[places + 1] - frames.offsets[places]
    wrong = sizes != _TRUNCATE_OIDS_AT + _OID_BYTES * counts
    if wrong.any():
        raise corrupt(frames, int(places[wrong.argmax()]), "a wrong count of tables")
    return counts
