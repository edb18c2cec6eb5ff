"""Rows that a stream delivers once more, because its target had come to differ from the source.

    streams/<stream>/repairs/<n>.<token>.arrow     the rows of the repair that is batch n

A repair is a batch like any other: its rows are durable before its number is taken, its number is
taken before the sink sees it, and the sink records it with the data. Whoever finds that the next
number is a repair's, a pipeline that runs or one that starts, delivers it and goes on behind it; so
it holds up nobody, and whoever asked for it may die at any moment. A number is given to a repair
only behind a batch that the sink has: it must not look newer than one that is still to come.

The rows of a replay take such a number as well, but are not kept: a replay that has died takes
another one. So whoever finds its number has nothing to deliver.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import LogFenced, SegmentCorrupt
from tailrace.failpoint import failpoint
from tailrace.log import layout
from tailrace.log.header import relation_from_json, relation_to_json
from tailrace.model import Lsn, Offset
from tailrace.postgres.pgoutput import relation_frame
from tailrace.sinks import Batch, Sink
from tailrace.storage import Store
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord

_METADATA: Final = b"tailrace"
_REPLAY: Final = "replay"
"""Stands for the key of the rows that a replay has not kept."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Rows of one table as they are at `position`, which is where the stream has it."""

    changes: TableChanges
    position: Offset


def put_repair(store: Store, stream: str, sequence: int, repair: Repair) -> str:
    """Make the rows durable; returns the object's key."""
    relation = repair.changes.relation
    about = {
        "position": repair.position.to_dict(),
        "relation": relation_to_json(relation_frame(relation), relation),
    }
    rows = repair.changes.rows.replace_schema_metadata({_METADATA: json.dumps(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    name = f"{sequence:016d}.{secrets.token_hex(8)}.arrow"
    key = f"{layout.STREAMS}{stream}/repairs/{name}"
    store.put_new(key, memoryview(sink.getvalue()))
    return key


def read_repair(store: Store, key: str) -> Repair:
    """Read what `put_repair` wrote; raises SegmentCorrupt."""
    try:
        with pa.ipc.open_file(pa.py_buffer(store.get(key))) as file:
            rows = file.read_all()
        about = json.loads((rows.schema.metadata or {})[_METADATA])
        _, relation = relation_from_json(about["relation"])
        position = Offset.from_dict(about["position"])
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read", hint="restore it from a backup") from error
    return Repair(TableChanges(relation, rows.replace_schema_metadata(None)), position)


def give_repair(
    stream: str, sink: Sink, record: StreamRecord, newest: BatchRecord, repair: Repair
) -> bool:
    """Deliver a repair as the batch behind `newest`, which the sink has; False if the stream, or
    another repair, was faster: then the rows may be old by now.
    """
    batch = _behind(newest, put_repair(record.store, stream, newest.sequence + 1, repair))
    failpoint("repair.before_fix")
    if not _is_fixed(record, batch):
        return False
    failpoint("repair.after_fix")
    deliver_repair(stream, sink.write, record, batch)
    return True


def give_replayed(
    stream: str,
    sink: Sink,
    record: StreamRecord,
    newest: BatchRecord,
    tables: Sequence[TableChanges],
    replay: str,
) -> bool:
    """The same for rows of a replay. If the sink refuses them, the stream goes on all the same."""
    batch = _behind(newest, _REPLAY)
    if not _is_fixed(record, batch):
        return False
    failpoint("replay.after_fix")
    known = frozenset(table.qualified for table in batch.tables)
    at = newest.upto
    try:
        sink.write(Batch(stream, batch.sequence, at, at, tables, known, replay))
    except Exception:
        record.finish(batch)
        raise
    failpoint("replay.after_write")
    record.finish(batch)
    return True


def _behind(newest: BatchRecord, repair: str) -> BatchRecord:
    return BatchRecord(
        sequence=newest.sequence + 1,
        after=newest.upto,
        upto=newest.upto,
        writer="repair",
        tables=newest.outcome,
        selection=newest.selection,
        repair=repair,
    )


def _is_fixed(record: StreamRecord, batch: BatchRecord) -> bool:
    try:
        record.fix(batch)
    except LogFenced:
        return False
    return True


def deliver_repair(
    stream: str, write: Callable[[Batch], None], record: StreamRecord, batch: BatchRecord
) -> None:
    """Hand a repair to the sink, which knows its number, and note that it is done."""
    if batch.repair == _REPLAY:
        record.finish(batch)
        return
    repair = read_repair(record.store, batch.repair)
    known = frozenset(table.qualified for table in batch.tables)
    at = repair.position
    failpoint("repair.before_write")
    write(Batch(stream, batch.sequence, at, at, [repair.changes], known))
    failpoint("repair.after_write")
    record.finish(batch)


def place_of(sequence: int, position: Offset) -> tuple[Lsn, int]:
    """Commit position and first ordinal of a repair's rows: behind every change at its position,
    and behind the repairs before it.
    """
    return position.commit_lsn, (1 << 62) + (sequence << 20)
