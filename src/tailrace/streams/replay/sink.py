"""A stream's sink as a replay sees it: what is delivered there was delivered before.

    messages   are sent again, marked, in the shape that they had
    changes    are added again under their offsets, marked, in the table's shape of today
    rows       only what is still the newest of its key, as a batch of the stream itself

Only the last one needs care. What is newest is told by where the stream stands; so the rows take
the stream's next number, which only one writer can have, and which the sink compares with what it
has. A writer that comes late finds a higher one there and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.errors import SchemaError, SinkError
from tailrace.failpoint import failpoint
from tailrace.log import Reader
from tailrace.model import Offset, Origin, Relation
from tailrace.model.change import ORIGIN
from tailrace.sinks import Batch, Holds, Load, Sink
from tailrace.spark.fit import fitted
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord
from tailrace.streams.repair import deliver_repair, give_replayed
from tailrace.streams.replay.later_changes import LaterChanges, LaterKeys
from tailrace.streams.replay.newest import newest_rows
from tailrace.streams.replay.pace import Pace
from tailrace.streams.replay.shapes import Shapes
from tailrace.streams.taken import Taken, TakenTables


class ReplaySink:
    """Writes batches of a replay to the sink that it is given."""

    def __init__(self, sink: Sink, replay: str, write: Callable[[Batch], None], pace: Pace) -> None:
        self._sink = sink
        self._replay = replay
        self._write = write
        self._pace = pace

    @property
    def holds(self) -> Holds:
        """As the sink itself."""
        return self._sink.holds

    def prepare(self, relation: Relation) -> None:
        """A replay comes to targets that are there."""

    def write(self, batch: Batch) -> None:
        """Deliver once more; the targets have no record of replays before the first."""
        failpoint("replay.before_batch")
        self._write(replace(batch, replay=self._replay, known_tables=frozenset()))
        failpoint("replay.after_batch")
        self._pace.passed(sum(table.rows.num_rows for table in batch.tables))

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """A replay has changes alone."""
        raise AssertionError("a replay loads nothing")

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """As the sink itself."""
        return self._sink.committed(stream, relations)

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """As the sink itself."""
        return self._sink.occupied(relations)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


@dataclass(frozen=True, slots=True)
class Flow:
    """The stream whose past is replayed into its own sink, and which goes on meanwhile.

    Whoever holds `turn` knows that this process delivers nothing of it. `tables` are those that are
    replayed, by oid.
    """

    name: str
    sink: Sink
    record: StreamRecord
    shapes: Shapes
    tables: frozenset[int]
    turn: AbstractContextManager[object]

    def newest(self) -> BatchRecord:
        """Its newest batch, which the sink has; raises SinkError(retry=True) if it has not."""
        newest = self.record.newest()
        if newest is not None and newest.repair and not self.record.is_done(newest):
            # One of ours, of a process that has died.
            deliver_repair(self.name, self.sink.write, self.record, newest)
        elif newest is None or not self.record.is_done(newest):
            raise SinkError(
                f"stream {self.name} has a batch that is not delivered",
                hint="the replay goes on when the stream does",
                retry=True,
            )
        return newest

    def table(self, oid: int) -> Taken | None:
        """Where a table stands, if the stream still has it."""
        return find_table(self.newest(), oid)


def find_table(newest: BatchRecord, oid: int) -> Taken | None:
    """Where a table stands after this batch."""
    return next((table for table in newest.outcome if table.oid == oid), None)


class AddedChanges:
    """For a sink that holds every change."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def write(self, batch: Batch) -> None:
        """Add them, each in the shape that its table has by now."""
        with self._flow.turn:
            tables = [made for changes in batch.tables if (made := self._of_today(changes))]
            self._flow.sink.write(replace(batch, tables=tables))

    def _of_today(self, changes: TableChanges) -> TableChanges | None:
        table = self._flow.table(changes.relation.oid)
        if table is None:
            return None
        shape = self._flow.shapes.of(table)
        try:
            rows = fitted(changes, change_schema(shape))
        except SchemaError as error:
            hint = "replay only what came after that; or to another place, with --to-sink"
            raise SchemaError(str(error), hint=hint) from None
        mark = pa.array([Origin.REPLAY.value] * rows.num_rows, pa.string())
        at = rows.column_names.index(ORIGIN)
        return TableChanges(shape, rows.set_column(at, rows.schema.field(ORIGIN), mark))


class NewestRows:
    """For a sink that holds rows. It is given all that the log has of a range, also what was not
    committed between these times: that may be newer than what is meant.
    """

    def __init__(self, flow: Flow, between_us: tuple[int, int] | None) -> None:
        self._flow = flow
        self._between_us = between_us
        self._reader = Reader(flow.record.store)
        self._later: LaterChanges | None = None

    def write(self, batch: Batch) -> None:
        """Give the stream what is still the newest of each table."""
        # Most of the work before the turn: meanwhile the stream goes on, with a batch under way.
        self._look(self._flow.record.delivered_tables(), batch)
        with self._flow.turn:
            while not self._is_given(batch):
                pass

    def _look(self, delivered: TakenTables, batch: Batch) -> LaterChanges:
        """See what was changed behind the batch, up to where the stream is."""
        later = self._later
        if later is None:
            chosen = [table for table in delivered if table.oid in self._flow.tables]
            tables = {table.oid: self._keys(table) for table in chosen}
            keyed = self._flow.shapes.keyed
            later = self._later = LaterChanges(self._reader, tables, batch.upto, keyed)
        for table in delivered:
            if table.oid in later.tables:
                keys = later.tables[table.oid]
                keys.emptied_at = max(keys.emptied_at, Offset.whole(table.generation))
                keys.forget(batch.upto)
        later.extend(max((table.position for table in delivered), default=later.upto))
        return later

    def _keys(self, table: Taken) -> LaterKeys:
        key = self._flow.shapes.of(table).key
        return LaterKeys(table.qualified, key, Offset.whole(table.generation))

    def _is_given(self, batch: Batch) -> bool:
        """Whether the sink has what is left of it; the stream may have been faster."""
        flow, newest = self._flow, self._flow.newest()
        later = self._look(newest.outcome, batch)
        found = (self._newest(changes, batch.upto, newest, later) for changes in batch.tables)
        tables = [changes for changes in found if changes is not None]
        if not tables:
            return True
        try:
            return give_replayed(flow.name, flow.sink, flow.record, newest, tables, batch.replay)
        except SinkError as error:
            if error.retry:
                raise
            raise SinkError(str(error), hint=f"begin the replay earlier; or {error.hint}") from None

    def _newest(
        self, changes: TableChanges, upto: Offset, newest: BatchRecord, later: LaterChanges
    ) -> TableChanges | None:
        oid = changes.relation.oid
        table = find_table(newest, oid)
        if table is None or oid not in later.tables:
            return None
        shape = self._flow.shapes.of(table)
        return newest_rows(changes, upto, later.tables[oid], shape, self._between_us)


def replay_sink(
    sink: Sink,
    flow: Flow | None,
    replay: str,
    pace: Pace,
    between_us: tuple[int, int] | None = None,
) -> ReplaySink:
    """For the stream's own sink, or, without a `flow`, for another one. `between_us` is what a sink
    that holds rows has to choose by itself.
    """
    if flow is None or sink.holds is Holds.MESSAGES:
        return ReplaySink(sink, replay, sink.write, pace)
    write: Callable[[Batch], None] = (
        AddedChanges(flow).write
        if sink.holds is Holds.CHANGES
        else NewestRows(flow, between_us).write
    )
    return ReplaySink(sink, replay, write, pace)
