"""One stream's query, restarted as long as that may help.

Every run starts on a fresh Spark checkpoint: the stream's record says where to go on, so a damaged
checkpoint can lose nothing.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.backoff import Backoff
from tailrace.errors import TailraceError
from tailrace.log import Reader
from tailrace.sinks import Sink
from tailrace.spark.options import BATCH_BYTES, NO_LIMIT
from tailrace.spark.packed import PackedDataSource, PackedOptions
from tailrace.storage import Store
from tailrace.streams.delivery import Delivered, Delivery
from tailrace.streams.failure import Failure, failure_of, query_failure
from tailrace.streams.record import StreamRecord
from tailrace.streams.resume import resume

logger = logging.getLogger(__name__)

UNKNOWN_FAILURES_MAX: Final = 8
"""So often in a row, without a batch delivered between, is something tried again of which nobody
has said that it may pass.
"""

STEADY_S: Final = 20.0
"""A query that has run this long is healthy, even if there was nothing to deliver."""


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
    """A stream in this process. Driven by one thread; `stop` may come from another one."""

    def __init__(self, stream: Stream, spark: SparkSession, store: Store, work_dir: Path) -> None:
        self._stream = stream
        self._spark = spark
        self._store = store
        self._checkpoints = work_dir.absolute() / "checkpoints" / stream.name
        self._backoff = Backoff(Random())
        self._query: StreamingQuery | None = None
        self._delivery: Delivery | None = None
        self._sink: Sink | None = None
        self._started_at = 0.0
        self._again_at = 0.0
        self._unknown_failures = 0
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
            return
        self._note_health(now)
        if not self._query.isActive:
            self._ended(now)

    def stop(self) -> None:
        """End the query. A batch that is at the sink is waited for; any other comes again."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def _attempt(self, now: float) -> None:
        try:
            self._start(now)
        except Exception as error:
            self._failed(failure_of(error), now, cause=error)

    def _start(self, now: float) -> None:
        stream = self._stream
        writer, patterns = secrets.token_hex(8), tuple(stream.tables)
        record = StreamRecord(self._store, stream.name)
        at = resume(record, Reader(self._store), patterns=patterns, writer=writer)
        if self._sink is None:
            self._sink = stream.open_sink()
        self._delivery = Delivery(
            stream.name, self._sink, record, at, patterns=patterns, writer=writer
        )
        options = PackedOptions(
            log=self._store.url,
            patterns=patterns,
            start=at.start,
            first_end=at.unfinished.upto if at.unfinished else None,
            changes_max=stream.changes_max or NO_LIMIT,
            bytes_max=stream.bytes_max or BATCH_BYTES,
        )
        self._query = self._start_query(options, self._delivery)
        self._started_at = now
        logger.info("stream started stream=%s after=%s", stream.name, at.start)

    def _start_query(self, options: PackedOptions, delivery: Delivery) -> StreamingQuery:
        source = self._spark.readStream.format(PackedDataSource.name())
        packed = source.option("spec", options.to_option()).load()
        trigger_ms = int(self._stream.trigger_s * 1000)
        return (
            packed.writeStream.queryName(self._stream.name)
            .foreachBatch(delivery)
            .option("checkpointLocation", self._fresh_checkpoint())
            .trigger(processingTime=f"{trigger_ms} milliseconds")
            .start()
        )

    def _fresh_checkpoint(self) -> str:
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        return (self._checkpoints / secrets.token_hex(8)).as_uri()

    def _note_health(self, now: float) -> None:
        assert self._delivery is not None
        if self._delivery.delivered.batch_count or now - self._started_at > STEADY_S:
            self._backoff.reset()
            self._unknown_failures = 0
            if self._query is not None and self._query.isActive:
                self._error = None

    def _ended(self, now: float) -> None:
        assert self._query is not None and self._delivery is not None
        raised = self._delivery.failure
        failure = failure_of(raised) if raised is not None else query_failure(self._query)
        self._query = None
        self._failed(failure, now, cause=raised)

    def _failed(self, failure: Failure, now: float, *, cause: BaseException | None) -> None:
        name, error = self._stream.name, failure.error
        is_news = self._error is None or str(self._error) != str(error)
        self._error = error
        self._unknown_failures += not failure.is_known
        trace = None if failure.is_known else cause
        if not error.retry or self._unknown_failures > UNKNOWN_FAILURES_MAX:
            self._is_stopped = True
            self.stop()
            logger.error("stream stopped stream=%s error=%s", name, error, exc_info=trace)
            return
        self._again_at = now + self._backoff.next_s()
        if is_news:
            logger.warning("stream interrupted stream=%s error=%s", name, error, exc_info=trace)
