"""A pipeline at work in a thread of a test, and sinks that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailrace.model import Offset, Relation
from tailrace.sinks import Batch, Holds, Load, Sink, open_sink
from tailrace.storage import Store
from tailrace.streams import Pipeline, Stream, StreamState
from tailrace.streams.control import Control
from tests.capture.running import wait_until
from tests.spark.made_log import Row

PATIENCE_S = 900.0
"""Spark takes its time on a busy machine. No test passes by waiting."""


class RunningPipeline:
    """A pipeline until the end of a `with`; `error` is what it ended with."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        directory: Path,
        *streams: Stream,
        control: Control | None = None,
        stays: bool = False,
    ) -> None:
        work_dir = directory / "work"
        self.pipeline = Pipeline(
            streams, spark, store, work_dir=work_dir, control=control, stays=stays
        )
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-pipeline")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Tell it to stop."""
        self._stop.set()

    def state(self, stream: str) -> StreamState:
        """How a stream is doing."""
        return next(state for state in self.pipeline.states if state.name == stream)

    def wait_for(self, upto: Offset, *streams: str) -> None:
        """Wait until these streams have delivered up to there; fail if one has stopped."""
        wait_until(lambda: all(self._is_at(name, upto) for name in streams), patience_s=PATIENCE_S)

    def wait_for_tables(self, stream: str, *tables: str) -> None:
        """Wait until a stream has taken up these tables."""
        wait_until(lambda: self.state(stream).tables >= set(tables), patience_s=PATIENCE_S)

    def wait_for_stop(self, stream: str) -> StreamState:
        """Wait until a stream has given up."""
        wait_until(lambda: self.state(stream).is_stopped, patience_s=PATIENCE_S)
        return self.state(stream)

    def _is_at(self, stream: str, upto: Offset) -> bool:
        state = self.state(stream)
        assert not state.is_stopped, state.error
        return state.delivered is not None and state.delivered.position >= upto

    def _run(self) -> None:
        try:
            self.pipeline.run(self._stop)
        except BaseException as error:
            self.error = error


class BadSink:
    """A sink that raises what it is told, so many times, and then passes everything on."""

    def __init__(self, sink: Sink, error: BaseException, times: int = 1 << 30) -> None:
        self._sink = sink
        self._error = error
        self.times = times

    @property
    def holds(self) -> Holds:
        return self._sink.holds

    def prepare(self, relation: Relation) -> None:
        self._sink.prepare(relation)

    def write(self, batch: Batch) -> None:
        if self.times:
            self.times -= 1
            raise self._error
        self._sink.write(batch)

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        self._sink.load(load, rows)

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        return self._sink.committed(stream, relations)

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        return self._sink.occupied(relations)

    def close(self) -> None:
        self._sink.close()


def stream(name: str, sink: Sink, *, changes_max: int | None = None) -> Stream:
    """All tables to a sink that is there already."""
    return Stream(name, ["public.*"], lambda _: sink, changes_max=changes_max)


def lake_stream(name: str, path: Path, mode: str = "upsert") -> Stream:
    """All tables to a lake, by the embedded engine."""
    options = {"type": "delta", "path": str(path), "mode": mode, "engine": "deltalake"}
    return Stream(name, ["public.*"], lambda _: open_sink(options))


def lake_table(path: Path, table: str = "public/orders") -> pa.Table:
    """A lake table as it is."""
    return DeltaTable(str(path / table)).to_pyarrow_table()


def lake_rows(path: Path, table: str = "public/orders") -> list[Row]:
    """The rows of a lake table, by key, without what Tailrace adds."""
    rows = lake_table(path, table)
    own = rows.select([name for name in rows.column_names if not name.startswith("_")])
    return sorted((tuple(row.values()) for row in own.to_pylist()), key=lambda row: repr(row[0]))
