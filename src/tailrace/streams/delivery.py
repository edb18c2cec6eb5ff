"""Hands the micro-batches of one query to a sink, each with a number and a range that are fixed.

Called by Spark on the driver, one batch at a time. What it raises ends the query; the pipeline
reads `failure` to tell whether trying again may help, because Spark keeps only the text.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from tailrace.errors import TailraceError
from tailrace.failpoint import failpoint
from tailrace.model import Offset
from tailrace.sinks import Batch, Sink
from tailrace.spark.packed import unpack
from tailrace.streams.record import BatchRecord, StreamRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a stream has delivered since it was started, and how far it is."""

    position: Offset
    batch_count: int = 0
    change_count: int = 0
    batch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream goes on: with batch `sequence`, which ends at `first_end` if that is set."""

    start: Offset
    first_end: Offset | None
    sequence: int
    known: frozenset[str]


def resume(record: StreamRecord, begin: Offset) -> Resume:
    """Read where the stream is; a stream without a record begins at `begin`."""
    start = record.start(begin)
    newest = record.newest()
    if newest is None:
        return Resume(start, None, 0, frozenset())
    if record.is_done(newest.sequence):
        return Resume(newest.upto, None, newest.sequence + 1, newest.known | newest.tables)
    return Resume(newest.after, newest.upto, newest.sequence, newest.known)


class Delivery:
    """The batches of one stream, from where it resumed."""

    def __init__(self, stream: str, sink: Sink, record: StreamRecord, at: Resume) -> None:
        self._stream = stream
        self._sink = sink
        self._record = record
        self._writer = secrets.token_hex(8)
        self._sequence = at.sequence
        self._known = at.known
        self.delivered = Delivered(at.start)
        self.failure: BaseException | None = None

    def __call__(self, packed: DataFrame, _batch_id: int) -> None:
        """Deliver one micro-batch."""
        try:
            self._deliver(packed.toArrow())
        except BaseException as error:
            self.failure = error
            raise

    def _deliver(self, packed: pa.Table) -> None:
        began = time.monotonic()
        found = unpack(packed)
        if found.after == found.upto:
            return
        names = frozenset(changes.relation.qualified for changes in found.tables)
        record = BatchRecord(
            self._sequence, found.after, found.upto, self._writer, self._known, names
        )
        failpoint("batch.before_fix")
        self._record.fix(record)
        failpoint("batch.before_write")
        self._sink.write(
            Batch(self._stream, self._sequence, found.after, found.upto, found.tables, self._known)
        )
        failpoint("batch.after_write")
        self._record.finish(record)
        failpoint("batch.after_finish")
        self._sequence += 1
        self._known |= names
        self.delivered = Delivered(
            position=found.upto,
            batch_count=self.delivered.batch_count + 1,
            change_count=self.delivered.change_count + sum(len(t.rows) for t in found.tables),
            batch_s=time.monotonic() - began,
        )


def is_passing(failure: BaseException | None) -> bool:
    """Whether trying again may help. Unknown errors may pass."""
    return failure.retry if isinstance(failure, TailraceError) else True
