"""Where a stream goes on: decided from its own record, never from Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.log import Reader
from tailrace.model import Offset
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord
from tailrace.streams.taken import TakenTables, matching, slowest


@dataclass(frozen=True, slots=True)
class Resume:
    """A run of a stream: it starts after `start` with batch `sequence`.

    If `unfinished` is set, that is this batch: what it delivers is fixed, and the sink may have it.
    `change_count` is what it counts on from.
    """

    start: Offset
    sequence: int
    tables: TakenTables
    unfinished: BatchRecord | None = None
    change_count: int = 0

    @property
    def first_end(self) -> Offset | None:
        """Where the first batch of changes must end, if that is fixed."""
        batch = self.unfinished
        return None if batch is None or batch.load is not None or batch.repair else batch.upto


def resume(
    record: StreamRecord,
    reader: Reader,
    *,
    patterns: Sequence[str],
    writer: str,
    selection: str = "",
) -> Resume:
    """Read where the stream is; one without a record begins at the beginning of the log.

    A stream that is asked for other rows or columns than before takes up every table anew.
    """
    record.revive()
    newest = record.newest() or record.begin(Offset.whole(reader.begin()), writer=writer)
    if newest.selection != selection:
        return Resume(newest.upto, newest.sequence + 1, ())
    if newest.repair and not record.is_done(newest):
        start = slowest(newest.tables, newest.upto)
        return Resume(start, newest.sequence, newest.tables, newest)
    if not record.is_done(newest):
        # Whole, also if the stream is not asked for one of its tables any more.
        return Resume(newest.after, newest.sequence, newest.tables, newest)
    tables = matching(newest.outcome, patterns)
    return Resume(slowest(tables, newest.upto), newest.sequence + 1, tables)
