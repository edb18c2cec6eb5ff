"""A stream that is delivered without Spark, and replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tailrace.log.epochs import Fence, take_epoch
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US
from tailrace.sinks import Sink
from tailrace.spark.options import NO_LIMIT
from tailrace.spark.packed import PackedOptions
from tailrace.spark.packing import Unpacked
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import Store
from tailrace.streams import Stream
from tailrace.streams.replay import Outcome, Replays, Request
from tailrace.streams.replay.look import ReplayLookout
from tailrace.streams.replay.reading import read_batches
from tailrace.streams.replay.request import Bound
from tailrace.streams.replay.run import Replaying
from tests.streams.by_hand import Run

STREAM = "orders"


def time_of(number: int) -> int:
    """When the log's n-th transaction was committed, counted from 1."""
    return POSTGRES_EPOCH_US + (700 + number) * 1_000_000


@dataclass
class Replayed:
    """A stream to the sink that `open_sink` opens, in batches of so many changes."""

    store: Store
    open_sink: Callable[[str], Sink]
    changes_max: int = NO_LIMIT
    selection: Selection = EVERYTHING
    open_other_sink: Callable[[str, str], Sink] | None = None
    before_batch: Callable[[], None] = lambda: None
    fence: Fence | None = None
    turn: AbstractContextManager[object] = field(default_factory=threading.Lock)

    @property
    def replays(self) -> Replays:
        return Replays(self.store)

    def taken_over(self) -> Replayed:
        """The same by another node; this one is fenced from now on."""
        return replace(self, fence=take_epoch(self.store, STREAM, node="another"))

    def go_on(self) -> None:
        """Deliver, live, to the end of the log."""
        with closing(self.open_sink(STREAM)) as sink:
            Run(
                self.store,
                sink,
                stream=STREAM,
                changes_max=self.changes_max,
                selection=self.selection,
                fence=self.fence,
                turn=self.turn,
            ).to_end()

    def ask(
        self,
        since: Bound,
        until: Bound | None = None,
        *,
        tables: Iterable[str] = (),
        key: Iterable[tuple[str, str]] = (),
        to_sink: str = "",
        rate: int = 0,
    ) -> Request:
        """Leave a request."""
        request = Request.new(
            STREAM,
            since,
            until,
            now=datetime.now(UTC),
            tables=list(tables),
            key=list(key),
            to_sink=to_sink,
            rate=rate,
        )
        self.replays.ask(request)
        return request

    def lookout(self) -> ReplayLookout:
        """What a pipeline has for the replays of the stream."""
        stream = Stream(
            STREAM,
            ["public.*"],
            self.open_sink,
            changes_max=self.changes_max,
            selection=self.selection,
            open_other_sink=self.open_other_sink,
        )
        replaying = Replaying(stream, self.store, self.turn, self._read)
        return ReplayLookout(self.store, STREAM, replaying)

    def serve(self) -> Outcome:
        """What a pipeline does with the request that is there; what became of it."""
        request = self.replays.current(STREAM)
        assert request is not None
        self.lookout().serve(request, self.fence or Fence(self.store, STREAM, 0))
        outcome = self.replays.outcome(request)
        assert outcome is not None
        return outcome

    def replay(self, since: Bound, until: Bound | None = None) -> Outcome:
        """Ask, and have it done."""
        self.ask(since, until)
        return self.serve()

    def _read(
        self, store: Store, options: PackedOptions, watch: Callable[[], None]
    ) -> Generator[Unpacked]:
        for batch in read_batches(store, options, watch):
            self.before_batch()
            yield batch
