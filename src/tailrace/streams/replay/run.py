"""Carries out one replay: a bounded run of the stream's own source and sink, with its own record.

    begin     the range is resolved and fixed, a start is put into the record, the log is kept
    batches   one after the other, as those of a stream: fixed, written, finished
    clear     the outcome is put, the log is let go

Whatever ends the process, the next one finds the request and goes on at the batch that is not
finished. Live batches of the stream come between those of the replay, never into one.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tailrace.decode import TableChanges
from tailrace.decode.times import is_between
from tailrace.errors import ConfigError
from tailrace.log import Reader
from tailrace.log.epochs import Fence
from tailrace.sinks import Holds, Sink
from tailrace.sinks.letters.dead_letter import root_of
from tailrace.sinks.postgres import PostgresSink
from tailrace.sinks.queue.sink import QueueSink
from tailrace.spark.options import BATCH_BYTES, NO_LIMIT
from tailrace.spark.packed import PackedOptions, ReadTable
from tailrace.spark.packing import Unpacked
from tailrace.spark.selection import Selection
from tailrace.storage import Store
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.delivery import Delivery
from tailrace.streams.ending import Ending
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay.choice import choose
from tailrace.streams.replay.keys import reader_name, record_name, run_name
from tailrace.streams.replay.letters import left_out, refused
from tailrace.streams.replay.outcome import Outcome, outcome_of
from tailrace.streams.replay.pace import Pace
from tailrace.streams.replay.places import require_own_place, require_targets
from tailrace.streams.replay.reading import read_batches
from tailrace.streams.replay.request import Request
from tailrace.streams.replay.requests import Replays
from tailrace.streams.replay.shapes import Shapes
from tailrace.streams.replay.sink import Flow, replay_sink
from tailrace.streams.replay.window import Window, resolve
from tailrace.streams.resume import Resume
from tailrace.streams.stream import Stream
from tailrace.streams.taken import slowest

logger = logging.getLogger(__name__)

CANCEL_S: Final = 1.0
"""How often to look whether somebody wants it to end."""


MESSAGES_MAX: Final = 10_000
"""So many messages are a batch of a replay to a queue: it can be ended between two of them, and is
seen to get on, though a queue may take seconds for as many.
"""


class Stopped(Exception):
    """Told to stop: the next process goes on."""


class Cancelled(Exception):
    """An operator has had enough."""


Read = Callable[[Store, PackedOptions, Callable[[], None]], Generator[Unpacked]]
"""As `read_batches`."""


@dataclass(frozen=True, slots=True)
class Replaying:
    """What replays of one stream need. `turn` is shared with the stream's own delivery."""

    stream: Stream
    store: Store
    turn: AbstractContextManager[object]
    read: Read = read_batches
    ending: Ending = field(default_factory=Ending)

    def carry_out(
        self,
        request: Request,
        stop: threading.Event,
        fence: Fence,
        gets_on: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Until it is over; `gets_on` is called behind each batch. Raises Stopped, LogFenced if
        another pipeline has taken the stream over, and whatever source and sink raise.
        """
        replays = Replays(self.store)
        if replays.is_cancelled(request):
            return self._ended(request)
        with closing(self.ending.hears(self._open_sink(request))) as sink:
            # The sink has looked up who delivers the stream: that must have been us.
            fence.check()
            window = replays.window(request) or replays.begin(request, self._window(request, sink))
            logger.info(
                "replay begins stream=%s id=%s after=%s upto=%s",
                *(request.stream, request.id, window.start, window.end),
            )
            if window.is_empty:
                return outcome_of(request, "done", 0, window.note)
            try:
                delivery = self._run(request, window, sink, stop, fence, gets_on)
            except Cancelled:
                return self._ended(request)
        found = (window.note, refused(self.store, request), left_out(self.store, request, window))
        notes = [note for note in found if note]
        return outcome_of(request, "done", delivery.delivered.change_count, "; ".join(notes))

    def _ended(self, request: Request) -> Outcome:
        progress = Replays(self.store).progress(request.stream)
        count = progress.change_count if progress is not None else 0
        return outcome_of(request, "cancelled", count, "cancelled by an operator")

    def _open_sink(self, request: Request) -> Sink:
        name = record_name(request.stream)
        if not request.to_sink:
            return self.stream.open_sink(name)
        if self.stream.open_other_sink is None:
            raise ConfigError("this pipeline cannot open another sink")
        return self.stream.open_other_sink(request.to_sink, name)

    def _window(self, request: Request, sink: Sink) -> Window:
        tables = StreamRecord(self.store, request.stream).delivered_tables()
        holds = Holds.MESSAGES if request.to_sink else sink.holds
        return resolve(request, Reader(self.store), tables, holds)

    def _run(
        self,
        request: Request,
        window: Window,
        sink: Sink,
        stop: threading.Event,
        fence: Fence,
        gets_on: Callable[[], None],
    ) -> Delivery:
        stream = self.stream
        name = record_name(request.stream)
        record = StreamRecord(self.store, name, fence, reader=reader_name(request))
        shapes = Shapes(self.store, stream.selection)
        own = StreamRecord(self.store, request.stream, fence)
        oids = frozenset(table.oid for table in window.tables)
        flow = None
        if not request.to_sink:
            flow = Flow(request.stream, sink, own, shapes, oids, self.turn)
            if isinstance(sink, QueueSink | PostgresSink):
                sink.leave_out_undelivered()
        pace = Pace(request.rate, stop.wait)
        target = replay_sink(sink, flow, request.id, pace, window.between_us)
        at = self._resume(request, window, record, sink, shapes, fence)
        selection = choose(request, stream.selection, [shapes.of(each) for each in window.tables])
        delivery = Delivery(
            record_name(request.stream),
            target,
            record,
            at,
            writer=secrets.token_hex(8),
            selection=Selection(text=run_name(request)),
            counted=partial(_count_meant, window),
        )
        if delivery.delivered.position < window.end:
            is_chosen_there = flow is not None and sink.holds is Holds.ROWS
            read = replace(window, between_us=None) if is_chosen_there else window
            most = MESSAGES_MAX if sink.holds is Holds.MESSAGES else NO_LIMIT
            options = self._options(request, read, delivery, at, selection, most)
            watch = _Watch(Replays(self.store), request, stop)
            with closing(self.read(self.store, options, watch)) as batches:
                for batch in batches:
                    delivery.deliver_batch(batch)
                    gets_on()
        return delivery

    def _resume(
        self,
        request: Request,
        window: Window,
        record: StreamRecord,
        sink: Sink,
        shapes: Shapes,
        fence: Fence,
    ) -> Resume:
        """Where the replay goes on; one that has no batch yet begins behind all numbers that the
        record or the sink has.
        """
        # Looked up before the record: whoever overtakes us puts letters only behind a batch.
        letters = [entry.key for entry in self.store.list(root_of(record_name(request.stream)))]
        newest = record.newest()
        # The newest batch may be of a later replay, if another node has that: it is left alone.
        fence.check()
        if newest is None or newest.selection != run_name(request):
            relations = [shapes.of(table) for table in window.tables]
            if request.to_sink:
                # The record has no batch of this replay, so nothing there can be its own.
                require_own_place(sink, request.stream, relations, store=self.store)
            else:
                require_targets(sink, request.stream, relations)
            recorded = sink.committed(record_name(request.stream), relations)
            last = max([newest.sequence if newest else -1, *recorded.values()])
            # Letters of an earlier replay are outdone: whoever wants them asks again.
            self.store.delete(letters)
            newest = BatchRecord(
                sequence=last + 1,
                after=window.start,
                upto=window.start,
                writer=secrets.token_hex(8),
                tables=window.tables,
                selection=run_name(request),
            )
            record.start(newest)
        if not record.is_done(newest):
            count = newest.count_before
            return Resume(newest.after, newest.sequence, newest.tables, newest, count)
        start = slowest(newest.outcome, newest.upto)
        return Resume(start, newest.sequence + 1, newest.outcome, None, newest.count_after)

    def _options(
        self,
        request: Request,
        window: Window,
        delivery: Delivery,
        at: Resume,
        selection: Selection,
        changes_max: int,
    ) -> PackedOptions:
        tables = [(table.oid, table.qualified, table.position) for table in delivery.tables]
        limits = [changes_max, self.stream.changes_max, request.rate]
        return PackedOptions(
            log=self.store.url,
            tables=tuple(ReadTable(*table) for table in tables),
            start=delivery.delivered.position,
            first_end=at.first_end,
            changes_max=min(each for each in limits if each),
            bytes_max=self.stream.bytes_max or BATCH_BYTES,
            selection=selection,
            end=window.end,
            between_us=window.between_us,
        )


def _count_meant(window: Window, changes: TableChanges) -> int:
    """How many of the changes that were read are meant."""
    if window.between_us is None:
        return changes.rows.num_rows
    return int(is_between(changes.rows, *window.between_us).sum())


class _Watch:
    """Raises Stopped or Cancelled when called; asks the store no more often than is fair."""

    def __init__(self, replays: Replays, request: Request, stop: threading.Event) -> None:
        self._replays = replays
        self._request = request
        self._stop = stop
        self._look_at = 0.0

    def __call__(self) -> None:
        if self._stop.is_set():
            raise Stopped
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + CANCEL_S
            if self._replays.is_cancelled(self._request):
                raise Cancelled
