"""How a range of the log becomes Spark's partitions, for batch and stream readers alike.

Spark starts several Python processes for a query, most of which only plan. So what decodes is
imported where it is used, on the executors: it doubles the time that such a process takes to start.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from tailrace.log import Reader, layout
from tailrace.log.plan import Limits, Piece, Wanted, fetch, plan_end
from tailrace.model import Offset, Relation
from tailrace.spark.options import NO_LIMIT
from tailrace.storage import ObjectMissing, Store, open_store

if TYPE_CHECKING:
    from tailrace.decode import OpenTransaction, TableChanges

PARTITION_BYTES: Final = 8 << 20
"""About how much one task decodes; a merged segment that is larger is one task's."""

_WAL_FILE_BYTES: Final = 16 << 20

POLL_S: Final = 0.1
"""How often an idle query looks for the one object that would be new. Spark asks far more often,
and waits: an answer from memory would be wrong for what came a moment ago.
"""

LOOK_S: Final = 2.0
"""How often an idle query looks at the whole log, which takes several listings: for what came and
was merged between two polls.
"""


class LogPartition(InputPartition):
    """Some neighbouring pieces of the log, for one task."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


def partitions(pieces: Iterable[Piece]) -> list[LogPartition]:
    """Group pieces into tasks, in order; at least one, as Spark would make up one of its own.

    A group also ends where a file of the WAL does: so batches of several streams that begin at
    different places have most of their groups in common.
    """
    groups: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        is_full = size + piece.data_bytes > PARTITION_BYTES
        if groups[-1] and (is_full or _wal_file(piece) != _wal_file(groups[-1][-1])):
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.data_bytes
    return [LogPartition(tuple(group)) for group in groups]


def _wal_file(piece: Piece) -> int:
    return piece.after.commit_lsn // _WAL_FILE_BYTES


def decode_pieces(
    store: Store,
    pieces: Iterable[Piece],
    wanted: Wanted,
    columns: tuple[str, ...] | None,
    *,
    read_as: Callable[[Relation], Relation] = lambda relation: relation,
) -> Iterator[TableChanges]:
    """Fetch and decode, neighbours together; tables in the shape that `read_as` gives for them."""
    from tailrace.decode import decode
    from tailrace.log.neighbours import joined

    found = (each for planned in pieces for each in fetch(store, planned, wanted=wanted))
    for piece, segment in joined(found, bytes_max=PARTITION_BYTES):
        header = segment.header
        names = {use.relation.qualified for use in header.relations if wanted(use.relation)}
        decoded = decode(
            segment.frames,
            initial={oid: read_as(each) for oid, each in header.initial.items()},
            versions={frame: read_as(each) for frame, each in header.versions.items()},
            after=piece.after,
            upto=piece.upto,
            tables=names,
            columns=columns,
            open_transaction=_open_transaction(piece),
        )
        # Another table may have had the name.
        yield from (changes for changes in decoded if wanted(changes.relation))


def _open_transaction(piece: Piece) -> OpenTransaction | None:
    from tailrace.decode import OpenTransaction

    part = piece.part
    if part is None:
        return None
    return OpenTransaction(part.commit_lsn, part.commit_ts_us, part.xid, part.first_ordinal)


@lru_cache(maxsize=8)
def worker_store(url: str) -> Store:
    """The store for the tasks of this process: Spark uses a worker for many tasks, and a bucket's
    connections are worth keeping.
    """
    return open_store(url)


@cache
def keep_imports() -> None:
    """Spark's workers collect garbage after every task and look at all that was ever imported: 20
    ms, more than a small task takes. What is there by now stays there, and is not looked at.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


class BatchEnds:
    """Answers Spark's question where the next micro-batch ends, and rarely asks the store for it
    when nothing happens.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.reader = reader
        self._clock = clock
        self._sleep = sleep
        self._limits = limits
        self._target: Offset | None = None
        self._idle_at: Offset | None = None
        self._poll_at = 0.0
        self._look_at = 0.0

    def stop_at_tip(self) -> None:
        """From now on, what is appended later is not there (Trigger.AvailableNow)."""
        self._target = Offset.whole(self.reader.tip().segment_end)

    def next(self, start: Offset, limit: ReadLimit, *, wanted: Wanted) -> Offset:
        """The end of the batch that starts after `start`; `start` if there is nothing new."""
        if start == self._idle_at and not self._is_news(start):
            return start
        end = plan_end(self.reader, start, limits=self.limited(limit), wanted=wanted)
        if self._target is not None:
            end = max(start, min(end, self._target))
        if end == start:
            self._idle_at = start
            now = self._clock()
            self._poll_at, self._look_at = now + POLL_S, now + LOOK_S
        return end

    def _is_news(self, start: Offset) -> bool:
        """Look no more often than is fair to the store."""
        self._sleep(max(0.0, self._poll_at - self._clock()))
        now = self._clock()
        self._poll_at = now + POLL_S
        return now >= self._look_at or self._has_successor(start)

    def _has_successor(self, start: Offset) -> bool:
        """Whether there is a segment under the one name that the next one can have."""
        try:
            self.reader.store.get(layout.segment_key(start.commit_lsn), length=1)
        except ObjectMissing:
            return False
        return True

    def limited(self, limit: ReadLimit) -> Limits:
        """What Spark's limit means, beside our own."""
        match limit:
            case ReadMaxRows(max_rows):
                return replace(self._limits, changes_max=max_rows)
            case ReadMaxBytes(max_bytes):
                return replace(self._limits, bytes_max=max_bytes)
            case _:
                return Limits(NO_LIMIT, NO_LIMIT)
