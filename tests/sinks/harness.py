"""What the conformance tests need beyond the sink itself: its rows, and ways to do it harm."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from threading import Barrier
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailrace.model import Relation
from tailrace.sinks import Sink
from tailrace.sinks.delta import DeltaOptions, DeltaSink, EmbeddedEngine, Engine, table_uri
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.merge import Merge
from tailrace.sinks.delta.spark import SparkEngine
from tailrace.sinks.delta.target import Target
from tailrace.sinks.memory import MemorySink

QUIET: Final = DeltaOptions(compact_after=0)
"""Nothing happens to the tables but what the test does."""


class Harness(Protocol):
    """A sink under test."""

    @property
    def sink(self) -> Sink: ...

    def rows(self, relation: Relation) -> list[tuple[object, ...]]:
        """The target's present rows, with the relation's columns and `_text`, sorted."""
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
