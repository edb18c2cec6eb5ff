"""Hands the bases and the micro-batches of one stream to a sink, each under a number that is fixed.

A load comes before the query, a batch from Spark on the driver, one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import LogFenced, SchemaError, SinkError, TargetLost
from tailrace.failpoint import failpoint
from tailrace.log import Base
from tailrace.model import Lsn, Offset, Relation
from tailrace.sinks import Batch, Load, Sink
from tailrace.sinks.sink import Holds
from tailrace.spark.packing import Unpacked, unpack
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord
from tailrace.streams.repair import deliver_repair
from tailrace.streams.resume import Resume
from tailrace.streams.taken import Taken, slowest


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a run of a stream has delivered, how far it is, and how long its batches took."""

    position: Offset
    batch_count: int = 0
    change_count: int = 0
    batch_us: int = 0


class Delivery:
    """The loads and batches of one run of a stream, from where it resumed.

    It delivers in its `turn` only, which it shares with whoever else writes to the same targets.
    """

    def __init__(
        self,
        stream: str,
        sink: Sink,
        record: StreamRecord,
        at: Resume,
        *,
        writer: str,
        bases: Callable[[], Mapping[int, Base]] | None = None,
        selection: Selection = EVERYTHING,
        turn: AbstractContextManager[object] | None = None,
        counted: Callable[[TableChanges], int] = lambda changes: changes.rows.num_rows,
    ) -> None:
        """`bases` are those that may be loaded, if any may. `counted` says how many of some changes
        are delivered, and are not there only to tell what became of them.
        """
        self.stream: Final = stream
        self._sink = sink
        self._record = record
        self._writer = writer
        self._selection = selection
        self._bases = bases
        self._turn = turn or nullcontext()
        self._counted = counted
        self._sequence = at.sequence
        self._unfinished = at.unfinished
        self.tables = at.tables
        self.delivered = Delivered(at.start, change_count=at.change_count)

    def deliver(self, packed: pa.Table) -> None:
        """Deliver a batch as Spark gives it."""
        self.deliver_batch(unpack(packed))

    def deliver_batch(self, found: Unpacked) -> None:
        """Fix the batch's range, write it, note that it is done."""
        began_ns = time.monotonic_ns()
        with self._turn:
            self._deliver(found)
        took_us = (time.monotonic_ns() - began_ns) // 1000
        self.delivered = replace(self.delivered, batch_us=self.delivered.batch_us + took_us)

    def _deliver(self, found: Unpacked) -> None:
        assert found.after == self.delivered.position, "a batch does not follow the one before"
        count = self.delivered.change_count + sum(map(self._counted, found.tables))
        batch = self._fixed(replace(self._planned(found.after, found.upto), count_after=count))
        assert batch.upto == found.upto, "a fixed batch has another end"
        known = frozenset(table.qualified for table in batch.tables)
        failpoint("batch.before_write")
        self._write(
            Batch(self.stream, batch.sequence, batch.after, batch.upto, found.tables, known)
        )
        failpoint("batch.after_write")
        self._record.finish(batch)
        failpoint("batch.after_finish")
        self._advance(batch)
        self.delivered = replace(
            self.delivered,
            position=batch.upto,
            batch_count=self.delivered.batch_count + 1,
            change_count=count,
        )

    def can_take(self, relation: Relation) -> bool:
        """Whether the sink could tell the table's rows apart. One of which it could not is left
        out of the stream, and all others flow.
        """
        needs_key = self._sink.holds in (Holds.ROWS, Holds.VERSIONS)
        has_key = bool(relation.key) and not relation.is_keyless
        return has_key or not needs_key or self._selection.key is not None

    def need(self, base: Base) -> None:
        """Let retention keep whatever follows a base, also if the stream was past it."""
        self._record.need_from(min(self.delivered.position, Offset.whole(base.position)))

    def load(self, base: Base, rows: Iterable[pa.Table]) -> None:
        """Fix the load, hand the whole base over, note that it is done."""
        with self._turn:
            self._load(base, rows)

    def _load(self, base: Base, rows: Iterable[pa.Table]) -> None:
        position = self.delivered.position
        relation = self._selection.narrow(base.relation)
        self._check_target(relation)
        self.need(base)
        batch = self._fixed(self._planned(position, position, base))
        failpoint("load.before_write")
        self._sink.load(
            Load(self.stream, batch.sequence, relation, base.position, base.taken_ts_us), rows
        )
        failpoint("load.after_write")
        # Once more: two that begin at the same time may not have seen each other.
        self._require_alone(relation)
        self._record.finish(batch)
        failpoint("load.after_finish")
        self._advance(batch)
        position = slowest(self.tables, otherwise=position)
        self.delivered = replace(self.delivered, position=position)

    def _write(self, batch: Batch) -> None:
        """A table whose new shape the sink refuses, or whose target was taken away, is left out if
        it was read anew since: then a load is due that replaces the target, and the table goes on
        from there. One that has no base at all is not captured any more, and no load is going to
        come.
        """
        try:
            self._sink.write(batch)
        except (SchemaError, TargetLost):
            if self._bases is None:
                raise
            taken = {table.oid: table.generation for table in self.tables}
            waiting = {
                oid
                for oid, base in self._bases().items()
                if base.generation <= taken.get(oid, Lsn(0))
            }
            left = [changes for changes in batch.tables if changes.relation.oid in waiting]
            if len(left) == len(batch.tables):
                raise
            self._sink.write(replace(batch, tables=left))

    def repair(self, batch: BatchRecord) -> None:
        """Deliver a repair whose number somebody has taken, and go on behind it."""
        self._unfinished = None
        if not self._record.is_done(batch):
            deliver_repair(self.stream, self._write, self._record, batch)
        self._sequence = batch.sequence + 1

    def abandon(self, unfinished: BatchRecord) -> None:
        """Give up a load whose base is gone: the next one replaces whatever it has left."""
        self._unfinished = None
        self._sequence = unfinished.sequence + 1

    def _planned(self, after: Offset, upto: Offset, base: Base | None = None) -> BatchRecord:
        return BatchRecord(
            sequence=self._sequence,
            after=after,
            upto=upto,
            writer=self._writer,
            tables=self.tables,
            load=Taken.from_base(base) if base is not None else None,
            selection=str(self._selection),
            count_before=self.delivered.change_count,
            count_after=self.delivered.change_count,
        )

    def _fixed(self, planned: BatchRecord) -> BatchRecord:
        """The unfinished batch, the first time; else the planned one, now durable."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            return unfinished
        failpoint("load.before_fix" if planned.load else "batch.before_fix")
        while True:
            try:
                self._record.fix(planned)
                return planned
            except LogFenced:
                repair = self._record.newest()
                if repair is None or not repair.repair:
                    raise
                # There may have been several. If the tables stand where they did, nothing else was.
                if not set(planned.tables) <= set(repair.tables):
                    raise
                self.repair(repair)
                planned = replace(planned, sequence=self._sequence)

    def _advance(self, batch: BatchRecord) -> None:
        self._sequence = batch.sequence + 1
        self.tables = batch.outcome

    def _check_target(self, relation: Relation) -> None:
        """A target that is new to the stream and yet has later batches of it would take this one
        for old and leave it out: the stream has lost its record, with its log for instance.
        """
        recorded = self._sink.committed(self.stream, [relation])
        if not recorded:
            self._require_alone(relation)
        ahead = [name for name, number in recorded.items() if number >= self._sequence]
        # If it is another pipeline that is ahead, `fix` says so; or the load is done already.
        if ahead and not self._record.is_taken(self._sequence):
            raise SinkError(
                f"the target of {ahead[0]} was filled by stream {self.stream} from another log",
                hint="take what is there away, or deliver to another place",
            )

    def _require_alone(self, relation: Relation) -> None:
        """What one stream loads, another would go on from as if it were its own."""
        for other in self._record.other_streams():
            if self._sink.committed(other, [relation]):
                raise SinkError(
                    f"stream {other} delivers {relation.qualified} to the same place",
                    hint=f"name another place, or end the other one: tailrace stream rm {other}",
                )
