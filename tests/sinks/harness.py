"""What the conformance tests need beyond the sink itself: its rows, and ways to do it harm."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from threading import Barrier
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from tailrace.model import Relation
from tailrace.sinks import Batch, Sink
from tailrace.sinks.columns import Mode
from tailrace.sinks.delta import DeltaOptions, DeltaSink, EmbeddedEngine, Engine, table_uri
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.merge import Merge
from tailrace.sinks.delta.spark import SparkEngine
from tailrace.sinks.delta.target import Target
from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.memory import MemorySink
from tailrace.sinks.postgres import PostgresOptions, PostgresSink
from tailrace.storage import Store
from tests.server import Database

QUIET: Final = DeltaOptions(compact_after=0)
"""Nothing happens to the tables but what the test does."""


class Harness(Protocol):
    """A sink under test."""

    @property
    def sink(self) -> Sink: ...

    def rows(self, relation: Relation) -> list[tuple[object, ...]]:
        """The target's present rows, with the relation's columns and `_text`, sorted."""
        ...

    @property
    def locks(self) -> bool:
        """Whether a second writer waits before it takes a row of a load."""
        ...

    def drop(self, relation: Relation) -> None:
        """Take the target away."""
        ...

    def rivals(self, barrier: Barrier) -> list[Sink]:
        """Two more sinks on the same target, which wait for each other before they commit."""
        ...


def sorted_rows(table: pa.Table, relation: Relation) -> list[tuple[object, ...]]:
    names = [*relation.column_names, "_text"]
    return sorted((tuple(row.values()) for row in table.select(names).to_pylist()), key=repr)


class MemoryHarness:
    """Rivals share the one sink: its lock is what keeps them apart."""

    locks = False

    def __init__(self) -> None:
        self._sink = MemorySink()

    @property
    def sink(self) -> Sink:
        return self._sink

    def rows(self, relation: Relation) -> list[tuple[object, ...]]:
        return sorted_rows(self._sink.table(relation.qualified), relation)

    def drop(self, relation: Relation) -> None:
        self._sink.drop(relation.qualified)

    def rivals(self, barrier: Barrier) -> list[Sink]:
        return [self._sink, self._sink]


class DeltaHarness:
    """A lake on local files."""

    locks = False

    def __init__(
        self,
        path: str,
        session: SparkSession | None,
        options: DeltaOptions = QUIET,
    ) -> None:
        self.path = path
        self.options = options
        self._session = session
        self._sinks: list[DeltaSink] = []
        self._sink = self.open()

    @property
    def sink(self) -> Sink:
        return self._sink

    def engine(self) -> Engine:
        return EmbeddedEngine() if self._session is None else SparkEngine(self._session)

    def open(self, engine: Engine | None = None) -> DeltaSink:
        self._sinks.append(
            DeltaSink(
                self.path,
                engine=engine or self.engine(),
                options=self.options,
            )
        )
        return self._sinks[-1]

    def table(self, relation: Relation) -> DeltaTable:
        return DeltaTable(table_uri(self.path, relation))

    def rows(self, relation: Relation) -> list[tuple[object, ...]]:
        rows = self.table(relation).to_pyarrow_table()
        for end in {"_valid_to", "_deleted_at"}.intersection(rows.column_names):
            rows = rows.filter(pc.field(end).is_null())
        return sorted_rows(rows, relation)

    def drop(self, relation: Relation) -> None:
        shutil.rmtree(table_uri(self.path, relation))

    def rivals(self, barrier: Barrier) -> list[Sink]:
        return [self.open(_Waiting(self.engine(), barrier)) for _ in range(2)]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class PostgresHarness:
    """Tables of a database of the shared server, whose values are all in their own columns."""

    locks = True

    def __init__(
        self,
        database: Database,
        mode: Mode = Mode.UPSERT,
        *,
        store: Store | None = None,
        limits: LetterLimits | None = None,
    ) -> None:
        """With a store for dead letters, those of the stream `lake`."""
        self.database = database
        self.options = PostgresOptions(database.dsn, mode=mode, letters=limits or LetterLimits())
        self._store = store
        self._sinks: list[PostgresSink] = []
        self._sink = self.open()

    @property
    def sink(self) -> Sink:
        return self._sink

    def open(self) -> PostgresSink:
        self._sinks.append(PostgresSink(self.options, store=self._store, stream="lake"))
        return self._sinks[-1]

    def rows(self, relation: Relation) -> list[tuple[object, ...]]:
        names = sql.SQL(", ").join(map(sql.Identifier, relation.column_names))
        place = sql.Identifier(*self.options.place(relation))
        with self.database.connect() as conn:
            found = conn.execute(sql.SQL("SELECT {} FROM {}").format(names, place)).fetchall()
        return sorted((_as_others(relation, row) for row in found), key=repr)

    def drop(self, relation: Relation) -> None:
        place = sql.Identifier(*self.options.place(relation))
        with self.database.connect() as conn:
            conn.execute(sql.SQL("DROP TABLE {}").format(place))

    def rivals(self, barrier: Barrier) -> list[Sink]:
        return [Together(self.open(), barrier) for _ in range(2)]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def _as_others(relation: Relation, row: Sequence[object]) -> tuple[object, ...]:
    """The row as a target has it whose columns cannot hold NaN."""
    is_nan = [isinstance(value, Decimal) and value.is_nan() for value in row]
    pairs = list(zip(relation.column_names, row, is_nan, strict=True))
    texts = [(name, "NaN") for name, _, nan in pairs if nan] or None
    return (*(None if nan else value for _, value, nan in pairs), texts)


class Together:
    """A sink whose batches begin at the same moment as its rival's: its lock keeps them apart."""

    def __init__(self, sink: Sink, barrier: Barrier) -> None:
        self._sink = sink
        self._barrier = barrier
        self.prepare = sink.prepare
        self.load = sink.load
        self.committed = sink.committed
        self.occupied = sink.occupied
        self.close = sink.close
        self.holds = sink.holds

    def write(self, batch: Batch) -> None:
        self._barrier.wait()
        self._sink.write(batch)


class _Waiting:
    """An engine that has looked at its target, and waits for its rival to have done so as well."""

    def __init__(self, engine: Engine, barrier: Barrier) -> None:
        self._engine = engine
        self._barrier = barrier
        self.is_local = engine.is_local

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return self._engine.errors

    def append(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        self._barrier.wait()
        self._engine.append(target, rows, commit)

    def overwrite(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        self._barrier.wait()
        self._engine.overwrite(target, rows, commit)

    def merge(self, target: Target, merge: Merge, commit: Commit) -> None:
        self._barrier.wait()
        self._engine.merge(target, merge, commit)

    def compact(self, target: Target, cluster_by: Sequence[str]) -> None:
        self._engine.compact(target, cluster_by)

    def vacuum(self, target: Target, retention: timedelta) -> None:
        self._engine.vacuum(target, retention)
