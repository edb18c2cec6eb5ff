"""Changes of many tables as rows of one schema, and back.

A row holds successive changes of one table: where they begin, the table's shape, and the changes as
an Arrow stream. One more row tells the range of the batch, so that it is known even if no table has
a change. Streams that deliver the same changes at the same time share them once they are unpacked:
a payload is known by its digest, which is made when it is.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

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

_DIGEST_BYTES: Final = 16

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
    payload = memoryview(sink.getvalue())
    digest = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
    return _row(lsn, ordinal, digest + pickle.dumps(changes.relation), payload)


def _row(lsn: int, ordinal: int, about: bytes, changes: bytes | memoryview) -> pa.RecordBatch:
    values = zip((lsn, ordinal, about, changes), _FIELDS.values(), strict=True)
    return pa.RecordBatch.from_arrays([pa.array([v], kind) for v, kind in values], list(_FIELDS))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A batch on the driver: its range, and each table's changes in order.

    As long as it is there, other streams that get the same `pieces` share them.
    """

    after: Offset
    upto: Offset
    tables: tuple[TableChanges, ...]
    pieces: tuple[TableChanges, ...] = ()


def unpack(packed: pa.Table) -> Unpacked:
    """Put the pieces of each table together again, in offset order."""
    order = np.lexsort((packed["ordinal"].to_numpy(), packed["lsn"].to_numpy()))
    first, *rest = order.tolist()
    lsns = packed["lsn"].to_pylist()
    assert lsns.count(_RANGE_LSN) == 1 and lsns[first] == _RANGE_LSN, "not one range in a batch"
    after, upto = map(Offset.from_dict, json.loads(packed["about"][first].as_py()))
    pieces = tuple(_changes(packed, place) for place in rest)
    return Unpacked(after, upto, joined(pieces), pieces)


def _changes(packed: pa.Table, place: int) -> TableChanges:
    about = packed["about"][place].as_py()
    relation: Relation = pickle.loads(about[_DIGEST_BYTES:])
    return TableChanges(
        relation, _UNPACKED.get(about[:_DIGEST_BYTES], packed["changes"][place].as_buffer())
    )


class _Unpacked:
    """What is in use by some stream of this process, by its digest."""

    def __init__(self) -> None:
        self._tables: WeakValueDictionary[bytes, pa.Table] = WeakValueDictionary()
        # Streams get the same at about the same time: the others wait for the first.
        self._lock = threading.Lock()

    def get(self, digest: bytes, payload: pa.Buffer) -> pa.Table:
        """The rows of a payload; they are good for as long as someone has them."""
        with self._lock:
            if (table := self._tables.get(digest)) is None:
                with pa.ipc.open_stream(payload) as stream:
                    table = self._tables[digest] = stream.read_all()
            return table


_UNPACKED: Final = _Unpacked()


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
