"""How a range of the log becomes Spark's partitions, for batch and stream readers alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from tailrace.decode import OpenTransaction, TableChanges, decode
from tailrace.log import Reader
from tailrace.log.plan import Limits, Piece, Wanted, fetch, plan_end
from tailrace.model import Offset
from tailrace.spark.options import NO_LIMIT
from tailrace.storage import Store

PARTITION_BYTES: Final = 8 << 20
"""About how much one task decodes; a merged segment that is larger is one task's."""

POLL_S: Final = 0.1
"""An idle query asks for new data many times a second; the store is asked no more often than this.
"""


class LogPartition(InputPartition):
    """Some neighbouring pieces of the log, for one task."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


def partitions(pieces: Iterable[Piece]) -> list[LogPartition]:
    """Group pieces into tasks, in order."""
    groups: list[LogPartition] = []
    group: list[Piece] = []
    for piece in pieces:
        if group and sum(p.data_bytes for p in group) + piece.data_bytes > PARTITION_BYTES:
            groups.append(LogPartition(tuple(group)))
            group = []
        group.append(piece)
    return [*groups, LogPartition(tuple(group))] if group else groups


def decode_pieces(
    store: Store, pieces: Iterable[Piece], wanted: Wanted, columns: tuple[str, ...] | None
) -> Iterator[TableChanges]:
    """Fetch and decode, piece by piece."""
    for planned in pieces:
        for piece, segment in fetch(store, planned, wanted=wanted):
            header = segment.header
            names = {use.relation.qualified for use in header.relations if wanted(use.relation)}
            yield from decode(
                segment.frames,
                initial=header.initial,
                versions=header.versions,
                after=piece.after,
                upto=piece.upto,
                tables=names,
                columns=columns,
                open_transaction=_open_transaction(piece),
            )


def _open_transaction(piece: Piece) -> OpenTransaction | None:
    part = piece.part
    if part is None:
        return None
    return OpenTransaction(part.commit_lsn, part.commit_ts_us, part.xid, part.first_ordinal)


class BatchEnds:
    """Answers Spark's question where the next micro-batch ends, without asking the store each
    time.
    """

    def __init__(self, reader: Reader, *, limits: Limits, wanted: Wanted) -> None:
        self._reader = reader
        self._limits = limits
        self._wanted = wanted
        self._target: Offset | None = None
        self._idle_at: Offset | None = None
        self._idle_until = 0.0

    def stop_at_tip(self) -> None:
        """From now on, what is appended later is not there (Trigger.AvailableNow)."""
        self._target = Offset.whole(self._reader.tip().segment_end)

    def next(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the batch that starts after `start`; `start` if there is nothing new."""
        if start == self._idle_at and time.monotonic() < self._idle_until:
            return start
        end = plan_end(self._reader, start, limits=self._limited(limit), wanted=self._wanted)
        if self._target is not None:
            end = max(start, min(end, self._target))
        if end == start:
            self._idle_at, self._idle_until = start, time.monotonic() + POLL_S
        return end

    def _limited(self, limit: ReadLimit) -> Limits:
        match limit:
            case ReadMaxRows(max_rows):
                return replace(self._limits, changes_max=max_rows)
            case ReadMaxBytes(max_bytes):
                return replace(self._limits, bytes_max=max_bytes)
            case _:
                return Limits(NO_LIMIT, NO_LIMIT)
