"""Hands the micro-batches of one query to a sink, each with a number and a range that are fixed.

Called by Spark on the driver, one batch at a time. What it raises ends the query; the pipeline
reads `failure` to tell whether trying again may help, because Spark keeps only the text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from tailrace.decode import TableChanges
from tailrace.errors import SinkError
from tailrace.failpoint import failpoint
from tailrace.model import Offset
from tailrace.sinks import Batch, Sink
from tailrace.spark.packing import Unpacked, unpack
from tailrace.streams.record import BatchRecord, StreamRecord
from tailrace.streams.resume import Resume


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a run of a stream has delivered, how far it is, and how long its last batch took."""

    position: Offset
    batch_count: int = 0
    change_count: int = 0
    batch_s: float = 0.0


class Delivery:
    """The batches of one run of a stream, from where it resumed."""

    def __init__(
        self,
        stream: str,
        sink: Sink,
        record: StreamRecord,
        at: Resume,
        *,
        patterns: tuple[str, ...],
        writer: str,
    ) -> None:
        self._stream = stream
        self._sink = sink
        self._record = record
        self._patterns = patterns
        self._writer = writer
        self._sequence = at.sequence
        self._known = at.known
        self._unfinished = at.unfinished
        self.delivered = Delivered(at.start)
        self.failure: BaseException | None = None

    def __call__(self, packed: DataFrame, _batch_id: int) -> None:
        """Deliver one micro-batch; Spark's number for it counts from its checkpoint, and not."""
        try:
            self.deliver(packed.toArrow())
        except BaseException as error:
            self.failure = error
            # In few words: Spark looks through the text of an error with a recursive expression,
            # and over that of a task its thread runs out of stack; the query then hangs.
            raise RuntimeError(f"batch {self._sequence} was not delivered") from None

    def deliver(self, packed: pa.Table) -> None:
        """Fix the batch's range, write it, note that it is done."""
        began = time.monotonic()
        found = unpack(packed)
        assert found.after == self.delivered.position, "a batch does not follow the one before"
        batch = self._fixed(found)
        failpoint("batch.before_write")
        self._sink.write(
            Batch(self._stream, batch.sequence, batch.after, batch.upto, found.tables, self._known)
        )
        failpoint("batch.after_write")
        self._record.finish(batch)
        failpoint("batch.after_finish")
        self._sequence = batch.sequence + 1
        self._known |= batch.tables
        self.delivered = Delivered(
            position=batch.upto,
            batch_count=self.delivered.batch_count + 1,
            change_count=self.delivered.change_count + sum(len(t.rows) for t in found.tables),
            batch_s=time.monotonic() - began,
        )

    def _fixed(self, found: Unpacked) -> BatchRecord:
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            assert found.upto == unfinished.upto, "a fixed batch has another end"
            return unfinished
        batch = BatchRecord(
            sequence=self._sequence,
            after=found.after,
            upto=found.upto,
            writer=self._writer,
            patterns=self._patterns,
            known=self._known,
            tables=frozenset(changes.relation.qualified for changes in found.tables),
        )
        self._check_targets(batch, found.tables)
        failpoint("batch.before_fix")
        self._record.fix(batch)
        return batch

    def _check_targets(self, batch: BatchRecord, tables: Sequence[TableChanges]) -> None:
        """A target that is new to the stream and yet has later batches of it would take this one
        for old and leave it out: the stream has lost its record, with its log for instance.
        """
        new = [each.relation for each in tables if each.relation.qualified not in self._known]
        recorded = self._sink.committed(self._stream, new)
        ahead = sorted(name for name, number in recorded.items() if number >= batch.sequence)
        # If it is another pipeline that is ahead, `fix` says so.
        if ahead and not self._record.is_taken(batch.sequence):
            raise SinkError(
                f"the target of {ahead[0]} was filled by stream {self._stream} from another log",
                hint="take what is there away, or deliver to another place",
            )
