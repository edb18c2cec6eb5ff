"""Writes batches of changes to a lake table of many rows, through the sink, and times each.

Between the batches of scattered keys and the last ones of neighbouring keys the table is tidied as
the sink's upkeep would do it in the background.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.programs.talk import peak_memory_mb, say, task
from tailrace.decode import TableChanges, change_schema
from tailrace.model import Column, Lsn, Offset, Op, PgType, Relation, ReplicaIdentity
from tailrace.sinks import Batch, Load
from tailrace.sinks.delta import DeltaOptions, DeltaSink, EmbeddedEngine, table_uri
from tailrace.sinks.delta.target import Target

_PIECE_ROWS = 100_000
_COLUMNS = {
    "id": PgType.INT8,
    "customer": PgType.INT8,
    "status": PgType.TEXT,
    "price": PgType.FLOAT8,
    "note": PgType.TEXT,
    "at": PgType.TIMESTAMPTZ,
}

RELATION = Relation(
    oid=16384,
    schema="public",
    name="orders",
    identity=ReplicaIdentity.DEFAULT,
    columns=tuple(Column(name, oid, -1, name == "id") for name, oid in _COLUMNS.items()),
    key=("id",),
)


@dataclass
class Table:
    """One lake table, and the sequence of what is written to it."""

    lake: str
    rows: int
    engine: EmbeddedEngine = field(default_factory=EmbeddedEngine)
    sequence: int = 0

    def __post_init__(self) -> None:
        options = DeltaOptions(compact_after=0)
        self.sink = DeltaSink(self.lake, engine=self.engine, options=options)
        self.random = np.random.default_rng(self.rows)

    def load(self) -> float:
        """Write all rows anew; the seconds."""
        self.sequence += 1
        position = Lsn(self.sequence * 0x1000)
        load = Load("bench", self.sequence, RELATION, position, 0)
        began = time.monotonic()
        self.sink.load(load, self._pieces())
        return time.monotonic() - began

    def write(self, ids: NDArray[np.int64]) -> float:
        """Update the rows with these keys; the seconds."""
        self.sequence += 1
        changes = TableChanges(RELATION, changes_of(ids, Op.UPDATE, self.random))
        after, upto = (Offset.whole(Lsn(0x1000 * at)) for at in (self.sequence, self.sequence + 1))
        batch = Batch("bench", self.sequence, after, upto, [changes])
        began = time.monotonic()
        self.sink.write(batch)
        return time.monotonic() - began

    def neighbours(self, count: int) -> NDArray[np.int64]:
        """Keys side by side, somewhere in the table."""
        first = int(self.random.integers(0, max(self.rows - count, 1)))
        return np.arange(first, min(first + count, self.rows))

    def scattered(self, count: int) -> NDArray[np.int64]:
        """Keys from all over the table."""
        return self.random.choice(self.rows, min(count, self.rows), replace=False)

    def tidy(self) -> float:
        """Order the table by its key; the seconds."""
        target = Target.open(table_uri(self.lake, RELATION))
        assert target is not None, "the table was loaded"
        began = time.monotonic()
        self.engine.compact(target, ["id"])
        return time.monotonic() - began

    def _pieces(self) -> Iterator[pa.Table]:
        for first in range(0, self.rows, _PIECE_ROWS):
            ids = np.arange(first, min(first + _PIECE_ROWS, self.rows))
            yield changes_of(ids, Op.INSERT, self.random)


def changes_of(ids: NDArray[np.int64], op: Op, random: np.random.Generator) -> pa.Table:
    """One change for each key, as the decoder would give them."""
    count = len(ids)
    notes = pa.array(random.integers(0, 1 << 60, count)).cast(pa.string())
    own: dict[str, Any] = {
        "id": pa.array(ids),
        "customer": pa.array(random.integers(0, 50_000, count)),
        "status": pa.array(["new", "paid", "sent", "done"]).take(random.integers(0, 4, count)),
        "price": pa.array(random.random(count)),
        "note": notes,
        "at": pa.array(random.integers(0, 1 << 50, count)).cast(pa.timestamp("us", "UTC")),
        "_op": pa.repeat(op.value, count),
    }
    schema = change_schema(RELATION)
    columns = [own.get(name) for name in schema.names]
    filled = [
        pa.nulls(count, field.type) if column is None else column
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(filled, schema=schema)


def main() -> None:
    """Measure one table."""
    wanted = task()
    table = Table(wanted["lake"], wanted["rows"])
    count, rounds = wanted["changes"], range(wanted["rounds"])
    table.load()
    seconds = {
        "rewrite": [table.load() for _ in rounds],
        "neighbours": [table.write(table.neighbours(count)) for _ in rounds],
        "scattered": [table.write(table.scattered(count)) for _ in rounds],
        "tidy": [table.tidy()],
        "neighbours then": [table.write(table.neighbours(count)) for _ in rounds],
    }
    table.sink.close()
    say("done", seconds=seconds, memory_mb=peak_memory_mb())


if __name__ == "__main__":
    main()
