"""Counts what a run of a stream delivers, over all deliveries that it makes one after another."""

from __future__ import annotations

import threading
from dataclasses import replace

from tailrace.control.stream_reports import Tally
from tailrace.sinks import Sink
from tailrace.sinks.queue import QueueSink
from tailrace.streams.delivery import Delivery


class Tallying:
    """One run's counters. `tally` may be read by any thread; it never falls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._past = Tally()
        self._delivery: Delivery | None = None
        self._sink: Sink | None = None
        self._counted = Tally()
        """What of the delivery and of the sink is in the past already."""

    @property
    def tally(self) -> Tally:
        """What was delivered, and what has failed, since the beginning."""
        with self._lock:
            return self._total()

    def begin(self, delivery: Delivery | None, sink: Sink | None) -> None:
        """From now on these deliver; what they have counted before is not counted."""
        with self._lock:
            self._past = self._total()
            self._delivery, self._sink = delivery, sink
            self._counted = self._now()

    def failed(self) -> None:
        """Something has interrupted it."""
        with self._lock:
            self._past = replace(self._past, failure_count=self._past.failure_count + 1)

    def _total(self) -> Tally:
        return self._past.plus(self._now().since(self._counted))

    def _now(self) -> Tally:
        retries = self._sink.retry_count if isinstance(self._sink, QueueSink) else 0
        if self._delivery is None:
            return Tally(retry_count=retries)
        done = self._delivery.delivered
        return Tally(
            batch_count=done.batch_count,
            change_count=done.change_count,
            retry_count=retries,
            batch_us=done.batch_us,
        )
