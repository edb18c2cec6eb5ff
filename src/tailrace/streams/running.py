"""One stream: its loads, then its query, restarted as long as that may help.

When a base appears that the stream is to load, its query ends after the batch that is under way,
and begins anew behind the load. Whatever may wait for a sink is done aside: the thread that drives
this stream drives all others as well.
"""

from __future__ import annotations

import logging
import secrets
import threading
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.control.stream_reports import Tally
from tailrace.errors import LogError, LogFenced, StoreError
from tailrace.log import Reader
from tailrace.log.bases import newest_bases
from tailrace.log.epochs import Fence, take_epoch
from tailrace.sinks import Sink
from tailrace.storage import Store
from tailrace.streams.aside import Aside
from tailrace.streams.delivery import Delivery
from tailrace.streams.ending import Ending
from tailrace.streams.failure import Failure, failure_of, query_failure
from tailrace.streams.lookout import Lookout
from tailrace.streams.preparing import load_due
from tailrace.streams.query import read_options, start_query
from tailrace.streams.record import StreamRecord
from tailrace.streams.relay import Relay
from tailrace.streams.replay.look import ReplayLookout
from tailrace.streams.replay.run import Replaying
from tailrace.streams.resume import Resume, resume
from tailrace.streams.setbacks import Setbacks
from tailrace.streams.starts import Starts
from tailrace.streams.stream import Stream, StreamState
from tailrace.streams.tallying import Tallying

logger = logging.getLogger(__name__)

STEADY_S: Final = 20.0
"""A query that has run this long is healthy, even if there was nothing to deliver."""

LOOK_S: Final = 3.0
"""How often a running stream looks for new bases."""


class RunningStream:
    """A stream in this process. Driven by one thread; `stop` may come from another one."""

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        store: Store,
        work_dir: Path,
        *,
        node: str = "",
        starts: Starts | None = None,
    ) -> None:
        """`node` is under which name an epoch of the stream is taken; without it none is, and no
        other pipeline may deliver the stream. `starts` are shared by all streams.
        """
        self._node = node
        self._starts = starts or Starts()
        self._fence: Fence | None = None
        self._tallying = Tallying()
        self.is_fenced = False
        self._stream = stream
        self._spark = spark
        self._store = store
        self._checkpoints = work_dir.absolute() / "checkpoints" / stream.name
        self._turn = threading.Lock()
        self._ending = Ending()
        replaying = Replaying(stream, store, self._turn, ending=self._ending)
        self._replays = ReplayLookout(store, stream.name, replaying)
        self._setbacks = Setbacks(stream.name)
        self._preparation: Aside | None = None
        self._halting: Aside | None = None
        self._stopping = threading.Lock()
        self._query: StreamingQuery | None = None
        self._delivery: Delivery | None = None
        self._relay: Relay | None = None
        self._at: Resume | None = None
        self._lookout: Lookout | None = None
        self._look_at = 0.0
        self._sink: Sink | None = None
        self._started_at = 0.0

    @property
    def state(self) -> StreamState:
        """As of now."""
        delivery = self._delivery
        # In this order: what is final has an error already.
        is_stopped = self._setbacks.is_final
        return StreamState(
            self._stream.name,
            delivery.delivered if delivery is not None else None,
            self._setbacks.error,
            is_stopped,
            delivery.tables if delivery is not None else (),
            self._replays.is_at_work,
        )

    @property
    def epoch(self) -> int:
        """Under which the stream is delivered; 0 until it is."""
        return self._fence.epoch if self._fence is not None else 0

    @property
    def tally(self) -> Tally:
        """What was delivered, and what has failed, since the beginning."""
        return self._tallying.tally.plus(Tally(replayed_count=self._replays.replayed_count))

    def step(self, now: float) -> None:
        """Prepare, start the query, notice its end, or wait: whatever is due."""
        if self._setbacks.is_final or self.is_fenced:
            return
        if not self._node or self._fence is not None:
            self._replays.step(now, self._fence or Fence(self._store, self._stream.name, 0))
        if self._is_halting():
            return
        if self._preparation is not None:
            if self._preparation.is_over and self._may_begin(self._preparation, now):
                self._prepared(now)
        elif self._query is None:
            if self._setbacks.is_over(now):
                self._preparation = Aside(self._prepare, name=self._stream.name)
        else:
            self._watch(self._query, now)

    def stop(self) -> None:
        """End the query. A batch that is at the sink is waited for, unless that itself waits for a
        queue; any other comes again. Whoever else has called it is waited for as well.
        """
        self._ending.tell()
        with self._stopping:
            preparation, self._preparation = self._preparation, None
            if preparation is not None:
                preparation.stop()
            self._halt()
            halting, self._halting = self._halting, None
            try:
                if halting is not None:
                    halting.wait()
            finally:
                self._close()

    def _close(self) -> None:
        self._replays.stop()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
            self._tallying.begin(self._delivery, None)

    def _halt(self) -> None:
        """Let the query end, and what it has handed over; until then nothing else begins."""
        query, self._query = self._query, None
        if query is not None and self._relay is not None:
            end = partial(_end, query, self._relay)
            self._halting = Aside(end, name=f"halt-{self._stream.name}")

    def _is_halting(self) -> bool:
        """Whether a query still comes to its end; raises what Spark does if nobody answers."""
        halting = self._halting
        if halting is not None and halting.is_over:
            self._halting = None
            halting.wait()
        return self._halting is not None

    def _give_up(self) -> None:
        """Stop, and wait for nothing."""
        Aside(self._stop_aside, name=f"stop-{self._stream.name}")

    def _stop_aside(self, _stop: threading.Event) -> None:
        try:
            self.stop()
        except Exception:
            logger.warning("stream ended badly stream=%s", self._stream.name, exc_info=True)

    def _prepare(self, stop: threading.Event) -> None:
        """In a thread of its own."""
        stream, store = self._stream, self._store
        writer, patterns, selection = secrets.token_hex(8), stream.tables, stream.selection
        if self._node and self._fence is None:
            self._fence = take_epoch(store, stream.name, node=self._node)
        record = StreamRecord(store, stream.name, self._fence)
        self._at = at = resume(
            record, Reader(store), patterns=patterns, writer=writer, selection=str(selection)
        )
        if self._sink is None:
            self._sink = self._ending.hears(stream.open_sink(stream.name))
        if self._fence is not None:
            # The sink has looked up who delivers the stream: that must have been us.
            self._fence.check()
        self._delivery = delivery = Delivery(
            stream.name,
            self._sink,
            record,
            at,
            writer=writer,
            selection=selection,
            bases=partial(newest_bases, store),
            turn=self._turn,
        )
        self._lookout = Lookout(store, patterns, delivery.can_take)
        self._tallying.begin(delivery, self._sink)
        load_due(delivery, store, patterns, selection, unfinished=at.unfinished, stop=stop)

    def _may_begin(self, preparation: Aside, now: float) -> bool:
        failed = preparation.error is not None
        return failed or self._starts.may_begin(self._stream.name, now)

    def _prepared(self, now: float) -> None:
        preparation, self._preparation = self._preparation, None
        assert preparation is not None
        error = preparation.error
        if error is None:
            try:
                self._start(now)
            except Exception as raised:
                error = raised
        if error is not None:
            self._failed(failure_of(error), now, cause=error)

    def _start(self, now: float) -> None:
        stream, delivery = self._stream, self._delivery
        assert delivery is not None and self._at is not None
        if not delivery.tables and self._at.first_end is None:
            # No table has a base yet: a query would have nothing to read.
            self._setbacks.cleared()
            self._setbacks.try_at(now + LOOK_S)
            return
        options = read_options(stream, self._store.url, delivery, self._at)
        self._relay = relay = Relay(delivery.deliver)
        self._query = start_query(
            self._spark, stream, options, relay, checkpoints=self._checkpoints
        )
        self._starts.begun(self._query, now)
        self._started_at = self._look_at = now
        logger.info("stream started stream=%s after=%s", stream.name, options.start)

    def _watch(self, query: StreamingQuery, now: float) -> None:
        assert self._relay is not None
        self._note_health(now)
        if not query.isActive or self._relay.failure is not None:
            self._ended(query, now)
        elif now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now)

    def _look(self, now: float) -> None:
        assert self._delivery is not None and self._at is not None and self._lookout is not None
        if self._at.first_end is not None and not self._delivery.delivered.batch_count:
            return
        try:
            if self._lookout.finds_others(self._delivery.tables):
                # If what was under way has failed, it comes again.
                self._halt()
                self._setbacks.try_at(now)
        except LogError as error:
            self._halt()
            self._failed(failure_of(error), now, cause=error)

    def _note_health(self, now: float) -> None:
        assert self._delivery is not None
        if self._delivery.delivered.batch_count or now - self._started_at > STEADY_S:
            self._setbacks.passed()
            if self._query is not None and self._query.isActive:
                self._setbacks.cleared()

    def _ended(self, query: StreamingQuery, now: float) -> None:
        assert self._relay is not None
        self._halt()
        raised = self._relay.failure
        failure = failure_of(raised) if raised is not None else query_failure(query)
        self._failed(failure, now, cause=raised)

    def _failed(self, failure: Failure, now: float, *, cause: BaseException | None) -> None:
        self._tallying.failed()
        if isinstance(failure.error, LogFenced) and self._fence is not None:
            self._fenced(self._fence, now)
            return
        self._setbacks.failed(failure, now, cause=cause)
        if self._setbacks.is_final:
            self._give_up()

    def _fenced(self, fence: Fence, now: float) -> None:
        """Stand by if another pipeline has the stream. If none has, a number was taken by the one
        before us, at its last moment, or the stream was reset: the record says how to go on.
        """
        try:
            fence.check()
        except StoreError as error:
            logger.debug("epochs cannot be read error=%s", error)
        except LogFenced as error:
            self.is_fenced = True
            self._give_up()
            logger.warning("stream left to another stream=%s reason=%s", self._stream.name, error)
            return
        self._setbacks.try_later(now)


def _end(query: StreamingQuery, relay: Relay, _stop: threading.Event) -> None:
    query.stop()
    relay.wait()
