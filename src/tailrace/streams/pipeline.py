"""Runs streams: each one Structured Streaming query of its own over the log.

A stream that fails does not touch the others. What may pass is tried again from the stream's own
record, with backoff; what needs a person stops that stream, with its reason. Every run starts on a
fresh Spark checkpoint: the record says where to go on, so a damaged checkpoint can lose nothing.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.backoff import Backoff
from tailrace.errors import LogError, SinkError, TailraceError
from tailrace.log import Reader, read_genesis
from tailrace.model import Offset
from tailrace.sinks import Sink
from tailrace.spark.options import BATCH_BYTES, ERROR_PREFIX, NO_LIMIT
from tailrace.spark.packed import PackedDataSource, PackedOptions
from tailrace.storage import Store
from tailrace.streams.delivery import Delivered, Delivery, is_passing, resume
from tailrace.streams.record import StreamRecord

logger = logging.getLogger(__name__)

POLL_S: Final = 0.2
STEADY_S: Final = 60.0
"""A query that ran this long was healthy: its next failure starts the backoff over."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Some tables, delivered to one sink."""

    name: str
    tables: Sequence[str]
    open_sink: Callable[[], Sink]
    trigger_s: float = 0.2
    changes_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class StreamState:
    """How a stream is doing; `error` says why it waits or has stopped."""

    name: str
    delivered: Delivered | None
    error: TailraceError | None
    is_stopped: bool


class RunningStream:
    """One stream's query, restarted as long as that may help."""

    def __init__(self, stream: Stream, spark: SparkSession, store: Store, work_dir: Path) -> None:
        self._stream = stream
        self._spark = spark
        self._store = store
        self._checkpoints = work_dir / "checkpoints" / stream.name
        self._backoff = Backoff(Random())
        self._query: StreamingQuery | None = None
        self._delivery: Delivery | None = None
        self._sink: Sink | None = None
        self._started_at = 0.0
        self._again_at = 0.0
        self._error: TailraceError | None = None
        self._is_stopped = False

    @property
    def state(self) -> StreamState:
        """As of now."""
        delivered = self._delivery.delivered if self._delivery else None
        return StreamState(self._stream.name, delivered, self._error, self._is_stopped)

    def step(self, now: float) -> None:
        """Start the query, notice its end, or wait: whatever is due."""
        if self._is_stopped:
            return
        if self._query is None:
            if now >= self._again_at:
                self._attempt(now)
        elif not self._query.isActive:
            self._ended(now)

    def stop(self) -> None:
        """End the query; a batch under way is interrupted and comes again at the next start."""
        if self._query is not None:
            self._query.stop()
            self._query = None
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _attempt(self, now: float) -> None:
        try:
            self._start(now)
        except TailraceError as error:
            self._failed(error, now, may_pass=error.retry)

    def _start(self, now: float) -> None:
        stream = self._stream
        record = StreamRecord(self._store, stream.name)
        at = resume(record, Offset.whole(Reader(self._store).begin()))
        if self._sink is None:
            self._sink = stream.open_sink()
        self._delivery = Delivery(stream.name, self._sink, record, at)
        options = PackedOptions(
            log=self._store.url,
            patterns=tuple(stream.tables),
            start=at.start,
            first_end=at.first_end,
            changes_max=stream.changes_max or NO_LIMIT,
            bytes_max=stream.bytes_max or BATCH_BYTES,
        )
        source = self._spark.readStream.format(PackedDataSource.name())
        query = (
            source.option("spec", options.to_option())
            .load()
            .writeStream.queryName(stream.name)
            .foreachBatch(self._delivery)
            .option("checkpointLocation", self._fresh_checkpoint())
            .trigger(processingTime=f"{int(stream.trigger_s * 1000)} milliseconds")
        )
        self._query = query.start()
        self._started_at = now
        logger.info("stream started stream=%s after=%s", stream.name, at.start)

    def _fresh_checkpoint(self) -> str:
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        return str(self._checkpoints / f"{time.time_ns()}")

    def _ended(self, now: float) -> None:
        assert self._query is not None and self._delivery is not None
        failure = self._delivery.failure
        error = failure if isinstance(failure, TailraceError) else _query_error(self._query)
        if now - self._started_at > STEADY_S:
            self._backoff.reset()
        self._query = None
        self._failed(error, now, may_pass=is_passing(failure) and error.retry)

    def _failed(self, error: TailraceError, now: float, *, may_pass: bool) -> None:
        is_news = self._error is None or str(self._error) != str(error)
        self._error = error
        if not may_pass:
            self._is_stopped = True
            self.stop()
            logger.error("stream stopped stream=%s error=%s", self._stream.name, error)
            return
        self._again_at = now + self._backoff.next_s()
        if is_news:
            logger.warning("stream interrupted stream=%s error=%s", self._stream.name, error)


class Pipeline:
    """All streams of one process."""

    def __init__(
        self, streams: Sequence[Stream], spark: SparkSession, store: Store, *, work_dir: Path
    ) -> None:
        self._store = store
        spark.dataSource.register(PackedDataSource)
        self._running = [RunningStream(stream, spark, store, work_dir) for stream in streams]

    @property
    def states(self) -> list[StreamState]:
        """How each stream is doing."""
        return [running.state for running in self._running]

    def run(self, stop: threading.Event) -> None:
        """Until told to stop, or until every stream has stopped; then raises the first error."""
        try:
            self._wait_for_log(stop)
            while not stop.wait(POLL_S):
                for running in self._running:
                    running.step(time.monotonic())
                if all(state.is_stopped for state in self.states):
                    break
        finally:
            for running in self._running:
                running.stop()
        for state in self.states:
            if state.is_stopped and state.error is not None:
                raise state.error

    def _wait_for_log(self, stop: threading.Event) -> None:
        is_said = False
        while read_genesis(self._store) is None:
            if not is_said:
                is_said = True
                logger.info("waiting for the log to begin url=%s", self._store.url)
            if stop.wait(POLL_S):
                return


def _query_error(query: StreamingQuery) -> TailraceError:
    """What ended a query, from the text that is left of it."""
    try:
        exception = query.exception()
    except PySparkException as error:
        return SinkError(f"spark ended the query: {error}", retry=True)
    text = str(exception)
    for line in reversed(text.splitlines()):
        _, found, message = line.partition(ERROR_PREFIX)
        if found:
            # The log's own errors do not pass by themselves, except those of its store.
            return LogError(message.strip(), retry="StoreError" in line)
    first = text.strip().splitlines()[0] if text.strip() else "unknown reason"
    return SinkError(f"spark ended the query: {first}", retry=True)
