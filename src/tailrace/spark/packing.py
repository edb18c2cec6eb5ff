"""Changes of many tables as rows of one schema, and back.

A row holds successive changes of one table: where they begin, the table's shape, and the changes as
an Arrow stream. One more row tells the range of the batch, so that it is known even if no table has
a change.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Offset, Relation
from tailrace.model.change import COMMIT_LSN, ORDINAL

_FIELDS: Final[dict[str, pa.DataType]] = {
    "lsn": pa.int64(),
    "ordinal": pa.int64(),
    "about": pa.binary(),
    "changes": pa.binary(),
}

_WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""On its way to the driver a payload is copied some eight times: compressed, which takes a fifth of
the time of one copy, it is a sixth of the size.
"""

_RANGE_LSN: Final = -1
"""Marks the row that is about the range, and sorts it first."""


def range_row(after: Offset, upto: Offset) -> pa.RecordBatch:
    """What a batch covers."""
    about = json.dumps([after.to_dict(), upto.to_dict()]).encode()
    return _row(_RANGE_LSN, 0, about, b"")


def changes_row(changes: TableChanges) -> pa.RecordBatch:
    """Changes of one table, at least one."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.rows.schema, options=_WRITE_OPTIONS) as writer:
        writer.write_table(changes.rows.combine_chunks())
    lsn, ordinal = (changes.rows[name][0].as_py() for name in (COMMIT_LSN, ORDINAL))
    return _row(lsn, ordinal, pickle.dumps(changes.relation), memoryview(sink.getvalue()))


def _row(lsn: int, ordinal: int, about: bytes, changes: bytes | memoryview) -> pa.RecordBatch:
    values = zip((lsn, ordinal, about, changes), _FIELDS.values(), strict=True)
    return pa.RecordBatch.from_arrays([pa.array([v], kind) for v, kind in values], list(_FIELDS))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A batch on the driver: its range, and each table's changes in order."""

    after: Offset
    upto: Offset
    tables: tuple[TableChanges, ...]


def unpack(packed: pa.Table) -> Unpacked:
    """Put the pieces of each table together again, in offset order."""
    order = np.lexsort((packed["ordinal"].to_numpy(), packed["lsn"].to_numpy()))
    first, *rest = order.tolist()
    lsns = packed["lsn"].to_pylist()
    assert lsns.count(_RANGE_LSN) == 1 and lsns[first] == _RANGE_LSN, "not one range in a batch"
    after, upto = map(Offset.from_dict, json.loads(packed["about"][first].as_py()))
    return Unpacked(after, upto, joined(_changes(packed, place) for place in rest))


def _changes(packed: pa.Table, place: int) -> TableChanges:
    relation: Relation = pickle.loads(packed["about"][place].as_py())
    with pa.ipc.open_stream(packed["changes"][place].as_buffer()) as stream:
        return TableChanges(relation, stream.read_all())


def joined(runs: Iterable[TableChanges]) -> tuple[TableChanges, ...]:
    """Runs that follow each other, put together by table."""
    found: dict[str, tuple[Relation, list[pa.Table]]] = {}
    for run in runs:
        relation = run.relation
        known, tables = found.setdefault(relation.qualified, (relation, []))
        # The planner ends a batch where a table changes its shape.
        assert relation == known, f"two shapes of {relation.qualified} in a batch"
        tables.append(run.rows)
    return tuple(TableChanges(known, pa.concat_tables(rows)) for known, rows in found.values())
