"""Makes differing rows what the source has, as a batch of the stream behind its last one.

The rows are known as of the snapshot, P; the stream may be past it, at T. What it has to hold is
their state at T: the rows at P and what the log says of them in (P, T]. A key that a row of ours
moves to on the way is ours as well; one that a row of others moves to has been written anew and
whole since, and needs no repair; nor does anything behind a TRUNCATE.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.decode.arrays import nulls
from tailrace.errors import SchemaError, SinkError
from tailrace.log import Reader
from tailrace.model import Offset, Op, Origin
from tailrace.model.change import (
    BEFORE,
    COMMIT_LSN,
    COMMIT_TS,
    OP,
    ORDINAL,
    ORIGIN,
    UNCHANGED,
    XID,
)
from tailrace.postgres.binaries import Array
from tailrace.sinks import Sink
from tailrace.sinks.events import is_op, of_struct
from tailrace.sinks.fold import fold
from tailrace.sinks.keys import Column, Mask, find_keys, key_columns
from tailrace.spark.selection import Selection
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord
from tailrace.streams.repair import Repair, deliver_repair, give_repair, place_of
from tailrace.streams.taken import Taken
from tailrace.verify.changes import changes_between
from tailrace.verify.standing import is_behind

POLL_S: Final = 0.02
WAIT_S: Final = 120.0
"""How long the stream is waited for, to pass the snapshot and to finish its batch."""


class Repairs:
    """Gives repairs to one stream; `sink` is the stream's own."""

    def __init__(self, stream: str, sink: Sink, record: StreamRecord, selection: Selection) -> None:
        self._stream = stream
        self._sink = sink
        self._record = record
        self._selection = selection
        self._reader = Reader(record.store)

    def finish_left_over(self) -> None:
        """Deliver a repair whose maker has died before it was delivered."""
        newest = self._record.newest()
        if newest is not None and newest.repair and not self._record.is_done(newest):
            deliver_repair(self._stream, self._sink.write, self._record, newest)

    def give(self, table: Taken, rows: TableChanges, at: Offset) -> None:
        """Let the target hold these rows, which are as of `at`: a delete for each key, then an
        insert for those that the source has. Returns when it does; raises SinkError.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            newest = self._settled(deadline)
            held = _find(newest, table)
            if newest.selection != str(self._selection) or held is None:
                raise SinkError(
                    f"stream {self._stream} does not deliver {table.qualified} any more"
                )
            if not held.position.is_whole or is_behind(self._reader, held, at):
                _wait(deadline, f"stream {self._stream} has not come to {at}")
                continue
            if self._give(newest, held, rows, at):
                return

    def _give(self, newest: BatchRecord, held: Taken, rows: TableChanges, at: Offset) -> bool:
        """Take the number behind the stream's newest batch; False if it was faster."""
        since = changes_between(
            self._reader, at, held.position, oid=held.oid, selection=self._selection
        )
        sequence = newest.sequence + 1
        changes = repair_rows(rows, since, sequence=sequence, position=held.position)
        if changes is None:
            return True
        repair = Repair(changes, held.position)
        return give_repair(self._stream, self._sink, self._record, newest, repair)

    def _settled(self, deadline: float) -> BatchRecord:
        """The stream's newest batch, when its sink has it."""
        while True:
            newest = self._record.newest()
            assert newest is not None, f"stream {self._stream} has a position and no record"
            if self._record.is_done(newest):
                return newest
            if newest.repair:
                deliver_repair(self._stream, self._sink.write, self._record, newest)
            else:
                _wait(deadline, f"batch {newest.sequence} of stream {self._stream} is not finished")


def _wait(deadline: float, reason: str) -> None:
    if time.monotonic() > deadline:
        raise SinkError(
            reason, hint="start the pipeline, or wait for it, and try again", retry=True
        )
    time.sleep(POLL_S)


def _find(newest: BatchRecord, table: Taken) -> Taken | None:
    return next((each for each in newest.outcome if each.oid == table.oid), None)


def repair_rows(
    rows: TableChanges, since: TableChanges | None, *, sequence: int, position: Offset
) -> TableChanges | None:
    """The rows of a repair, as changes at `position`; None if there is nothing left to repair.

    Raises SchemaError(retry=True) if the table has another shape by then.
    """
    relation = rows.relation
    every = rows.rows
    if since is not None:
        if is_op(since.rows, Op.TRUNCATE).any():
            return None
        if since.relation.columns != relation.columns:
            raise SchemaError(
                f"{relation.qualified} has changed its shape since the snapshot", retry=True
            )
        every = pa.concat_tables([every, _concerning(since, _keys(rows))])
    folded = fold(TableChanges(relation, every))
    written = folded.upserts
    if folded.kept:
        foreign = np.logical_or.reduce(list(folded.kept.values()))
        written = written.filter(pa.array(~foreign))
    parts = [_changes(written, op=Op.INSERT, like=rows)]
    parts.append(_changes(folded.deletes, op=Op.DELETE, like=rows))
    made = pa.concat_tables(parts)
    if not made.num_rows:
        return None
    lsn, first = place_of(sequence, position)
    ordinals = pa.array(np.arange(made.num_rows, dtype=np.int64) + first)
    made = _set(made, COMMIT_LSN, pa.array(np.full(made.num_rows, int(lsn), dtype=np.int64)))
    return TableChanges(relation, _set(made, ORDINAL, ordinals))


def _keys(rows: TableChanges) -> pa.Table:
    return key_columns(rows.rows, rows.relation.key)


def _concerning(since: TableChanges, keys: pa.Table) -> pa.Table:
    """The changes of these keys, and of those that their rows move to."""
    rows, key = since.rows, list(since.relation.key)
    own = key_columns(rows, key)
    old = pa.table([of_struct(rows.column(BEFORE), name) for name in key], names=key)
    moves = is_op(rows, Op.UPDATE) & rows.column(BEFORE).is_valid().to_numpy()
    while True:
        from_ours = moves & _among(old, keys, moves)
        reached = own.filter(pa.array(from_ours))
        more = reached.filter(pa.array(find_keys(reached, keys) < 0))
        if not more.num_rows:
            return rows.filter(pa.array(from_ours | (find_keys(own, keys) >= 0)))
        keys = pa.concat_tables([keys, more])


def _among(keys: pa.Table, wanted: pa.Table, where: Mask) -> Mask:
    found = np.zeros(keys.num_rows, dtype=np.bool_)
    found[where] = find_keys(keys.filter(pa.array(where)), wanted) >= 0
    return found


def _changes(rows: pa.Table, *, op: Op, like: TableChanges) -> pa.Table:
    """Rows, or only keys, as changes of this kind."""
    schema = change_schema(like.relation)
    count = rows.num_rows
    now_us = int(time.time() * 1e6)
    given: dict[str, Array] = {
        OP: pa.array([op.value] * count, pa.string()),
        ORIGIN: pa.array([Origin.REPAIR.value] * count, pa.string()),
        COMMIT_TS: pa.array([now_us] * count, schema.field(COMMIT_TS).type),
        COMMIT_LSN: pa.array([0] * count, pa.int64()),
        ORDINAL: pa.array([0] * count, pa.int64()),
        XID: pa.array([0] * count, pa.int64()),
    }
    columns: list[Array | Column] = []
    for field in schema:
        if field.name in given:
            columns.append(given[field.name])
        elif field.name in rows.column_names and field.name not in (BEFORE, UNCHANGED):
            columns.append(rows.column(field.name))
        else:
            columns.append(nulls(field.type, count))
    return pa.table(columns, schema=schema)


def _set(rows: pa.Table, name: str, values: Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
