"""What a pipeline tells Prometheus about its streams. The names follow the nouns of the code.

Everything is looked up when Prometheus asks. Of a stream that another pipeline delivers only that
is told: so sums over all nodes count each stream once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tailrace.control.stream_reports import StreamReport
from tailrace.control.streams import Status
from tailrace.log import Reader
from tailrace.storage import Store
from tailrace.streams.observing import Delivering, Observer, position_of
from tailrace.streams.sights import Letters

_LABELS = ("source", "stream")
_Labels = tuple[str, str]


class StreamMetrics(Collector):
    """One pipeline's numbers, in a registry of their own."""

    def __init__(self, source: str, store: Store) -> None:
        self._source = source
        self._store = store
        self._observer = Observer(Reader(store))
        self._places: Callable[[], Sequence[Delivering]] = list
        self._lock = threading.Lock()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def watch(
        self,
        places: Callable[[], Sequence[Delivering]],
        slot_is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Tell of these from now on."""
        with self._lock:
            self._observer = Observer(Reader(self._store), slot_is_lost=slot_is_lost)
            self._places = places

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: the log need not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """As of now; what cannot be found out is left out."""
        with self._lock:
            places = self._places()
            leader = _gauge("leader", "1 while this process delivers the stream")
            led = [place for place in places if place.wish.is_led and not place.is_fenced]
            for place in places:
                leader.add_metric(self._labels(place), place in led)
            yield leader
            yield from self._states(led)
            yield from self._counters(led)

    def _states(self, places: Sequence[Delivering]) -> Iterator[Metric]:
        status = _gauge("status", "1 for the state that the stream is in", "status")
        self._observer.look({place.wish.name: position_of(place) for place in places})
        seen = [(self._labels(place), self._observer.report(place)) for place in places]
        for place, (labels, report) in zip(places, seen, strict=True):
            found = Status.PAUSED if place.wish.is_paused else report.status
            for each in Status:
                status.add_metric((*labels, each), each is found)
        yield status
        for name, text, value in _OF_REPORTS:
            yield _filled(name, text, [(labels, value(report)) for labels, report in seen])
        letters = [
            (self._labels(place), self._observer.letters(place.wish.name)) for place in places
        ]
        for name, text, count in _OF_LETTERS:
            yield _filled(
                name, text, [(labels, count(each)) for labels, each in letters if each is not None]
            )

    def _counters(self, places: Sequence[Delivering]) -> Iterator[Metric]:
        changes = _counter("changes", "changes delivered")
        failures = _counter("failures", "times that delivery was interrupted")
        retries = _counter("retries", "messages sent once more to a queue that did not take them")
        batches = SummaryMetricFamily(
            "tailrace_stream_batch_seconds", "batches delivered, and their time", labels=_LABELS
        )
        for place in places:
            labels, tally = self._labels(place), place.tally
            changes.add_metric(labels, tally.change_count)
            failures.add_metric(labels, tally.failure_count)
            retries.add_metric(labels, tally.retry_count)
            batches.add_metric(labels, tally.batch_count, tally.batch_us / 1e6)
        yield from (changes, failures, retries, batches)

    def _labels(self, place: Delivering) -> _Labels:
        return self._source, place.wish.name


_OF_REPORTS: tuple[tuple[str, str, Callable[[StreamReport], float | None]], ...] = (
    ("epoch", "under which the stream is delivered", lambda report: report.epoch),
    ("position_lsn", "up to where the stream is delivered", lambda report: report.position),
    ("lag_bytes", "log behind that position", lambda report: report.lag_bytes),
    ("lag_seconds", "age of the oldest commit behind it", lambda report: report.lag_seconds),
)
_OF_LETTERS: tuple[tuple[str, str, Callable[[Letters], float]], ...] = (
    ("dead_letters", "messages among the dead letters", lambda each: each.letter_count),
    ("parked_keys", "rows that wait behind a dead letter", lambda each: each.parked_count),
    ("dead_letter_copies", "copies that wait for their queue", lambda each: each.copy_count),
)


def _gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tailrace_stream_{name}", text, labels=(*_LABELS, *more))


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"tailrace_stream_{name}", text, labels=_LABELS)


def _filled(
    name: str, text: str, values: Iterable[tuple[_Labels, float | None]]
) -> GaugeMetricFamily:
    gauge = _gauge(name, text)
    for labels, value in values:
        if value is not None:
            gauge.add_metric(labels, value)
    return gauge
