"""Runs streams: each one Structured Streaming query of its own over the log.

A stream that fails does not touch the others. What may pass is tried again from the stream's own
record, with backoff; what needs a person stops that stream, with its reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tailrace.compaction import Compactor, on_spark
from tailrace.errors import StoreError, TailraceError
from tailrace.log import read_genesis
from tailrace.spark.packed import PackedDataSource
from tailrace.storage import Store
from tailrace.streams.running import RunningStream
from tailrace.streams.stream import Stream, StreamState
from tailrace.streams.upkeep import Upkeep

logger = logging.getLogger(__name__)

POLL_S: Final = 0.2
STOP_S: Final = 20.0
"""How long a batch that is at its sink is waited for."""


class Pipeline:
    """All streams of one process."""

    def __init__(
        self,
        streams: Sequence[Stream],
        spark: SparkSession,
        store: Store,
        *,
        work_dir: Path,
        compaction_interval_s: float | None = None,
    ) -> None:
        """With an interval, bases that are older are folded beside the streams."""
        self._store = store
        self._upkeep: Upkeep | None = None
        if compaction_interval_s is not None:
            compactor = Compactor(store, on_spark(spark))
            self._upkeep = Upkeep(compactor, interval_s=compaction_interval_s)
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
            if self._upkeep is not None:
                self._upkeep.start()
            while not stop.wait(POLL_S):
                for running in self._running:
                    running.step(time.monotonic())
                if all(state.is_stopped for state in self.states):
                    break
        except (Py4JError, ConnectionError) as error:
            raise TailraceError(
                "spark has gone away", hint="its own messages are above; start again"
            ) from error
        finally:
            self._stop_all()
        for state in self.states:
            if state.is_stopped and state.error is not None:
                raise state.error

    def _stop_all(self) -> None:
        """Side by side, so that one slow sink does not hold up the others."""
        if self._upkeep is not None:
            self._upkeep.stop()
        threads = [
            threading.Thread(target=_stop, args=[running], name="tailrace-stop", daemon=True)
            for running in self._running
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            logger.warning("a batch does not come to its end and is left to itself")

    def _wait_for_log(self, stop: threading.Event) -> None:
        is_said = False
        while not stop.is_set() and not self._has_begun():
            if not is_said:
                is_said = True
                logger.info("waiting for the log to begin url=%s", self._store.url)
            stop.wait(POLL_S)

    def _has_begun(self) -> bool:
        try:
            return read_genesis(self._store) is not None
        except StoreError as error:
            if not error.retry:
                raise
            logger.warning("the log cannot be read error=%s", error)
            return False


def _stop(running: RunningStream) -> None:
    try:
        running.stop()
    except (Py4JError, ConnectionError) as error:
        logger.debug("spark is gone, and its query with it error=%s", error)
