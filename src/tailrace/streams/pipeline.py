"""Runs streams: each one Structured Streaming query of its own over the log.

A stream that fails does not touch the others. What may pass is tried again from the stream's own
record, with backoff; what needs a person stops that stream, with its reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tailrace.compaction import Compactor, on_spark
from tailrace.errors import StoreError
from tailrace.log import read_genesis
from tailrace.spark.packed import PackedDataSource
from tailrace.spark.session import spark_is_needed
from tailrace.storage import Store
from tailrace.streams.control import Control
from tailrace.streams.place import Place, Wish
from tailrace.streams.running import RunningStream
from tailrace.streams.starts import Starts
from tailrace.streams.stream import Stream, StreamState
from tailrace.streams.upkeep import Upkeep

logger = logging.getLogger(__name__)

POLL_S: Final = 0.2
STOP_S: Final = 20.0
"""How long a batch that is at its sink is waited for."""

SPARK_S: Final = 5.0
"""How often to see that Spark is there: whoever stands by does not use it, and needs it at once."""


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
        control: Control | None = None,
        stays: bool = False,
    ) -> None:
        """With an interval, bases that are older are folded beside the streams. `control` says
        which streams there are beside these, and whether others may deliver them. One that `stays`
        goes on when all its streams have stopped.
        """
        self._store = store
        self._spark = spark
        self._spark_at = 0.0
        self._control = control
        self._stays = stays
        self._upkeep: Upkeep | None = None
        self.is_left = False
        """Whether a batch did not come to its end when it was to."""
        if compaction_interval_s is not None:
            compactor = Compactor(store, on_spark(spark))
            self._upkeep = Upkeep(compactor, interval_s=compaction_interval_s)
        spark.dataSource.register(PackedDataSource)
        node = "" if control is None else control.node
        self._make = partial(
            RunningStream,
            spark=spark,
            store=store,
            work_dir=work_dir,
            node=node,
            starts=Starts(),
        )
        wishes = [Wish(stream.name, stream) for stream in streams]
        self._places = {wish.name: Place(wish, self._make) for wish in wishes}

    @property
    def states(self) -> list[StreamState]:
        """How each stream is doing."""
        return [place.state for place in self.places]

    @property
    def places(self) -> list[Place]:
        """Where each stream is delivered, or would be."""
        return list(self._places.values())

    def run(self, stop: threading.Event) -> None:
        """Until told to stop, or until every stream has stopped and nobody could resume one; then
        raises the first error.
        """
        try:
            with spark_is_needed():
                self._deliver(stop)
        finally:
            self._stop_all()
        for state in self.states:
            if state.is_stopped and state.error is not None:
                raise state.error

    def _deliver(self, stop: threading.Event) -> None:
        self._wait_for_log(stop)
        if self._upkeep is not None:
            self._upkeep.start()
        if self._control is not None:
            self._control.start(lambda: self.places)
        while not stop.wait(POLL_S):
            self._look_after_spark(time.monotonic())
            if self._control is not None:
                self._follow(self._control)
            for place in self.places:
                place.step(time.monotonic())
            if self._is_over:
                break

    @property
    def _is_over(self) -> bool:
        """Whether nothing more can come of any stream. Where SQL can resume one, it may."""
        if self._stays or (self._control is not None and self._control.was_reached):
            return False
        return bool(self._places) and all(place.is_over for place in self.places)

    def _look_after_spark(self, now: float) -> None:
        """Ask it for something now and then; raises what Py4J does if nobody answers."""
        if now >= self._spark_at:
            self._spark_at = now + SPARK_S
            logger.debug("spark is there queries=%d", len(self._spark.streams.active))

    def _follow(self, control: Control) -> None:
        """Take over what is wished by now."""
        control.wake()
        wishes = {wish.name: wish for wish in control.wishes}
        for name, wish in wishes.items():
            if name not in self._places:
                self._places[name] = Place(wish, self._make)
            self._places[name].wish = wish
        for name, place in list(self._places.items()):
            if place.is_fenced:
                control.was_fenced(place.wish)
            if name not in wishes:
                place.withdraw()
                if place.is_idle:
                    del self._places[name]

    def _stop_all(self) -> None:
        """Side by side, so that one slow sink does not hold up the others."""
        if self._upkeep is not None:
            self._upkeep.stop()
        threads = [
            threading.Thread(target=place.stop, name="tailrace-stop", daemon=True)
            for place in self.places
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self.is_left = True
            logger.warning("a batch does not come to its end and is left to itself")
        if self._control is not None:
            self._control.stop()

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
