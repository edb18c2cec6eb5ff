"""A queue as a sink: batches and bases as messages, in order for each row, none lost.

Nothing is recorded with the data, so a batch that comes again is sent again, with the same event
ids: at most one window of it, because the frontier is saved, and less at a queue that can be read.
Within one process nothing is sent twice that the queue has acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tailrace.errors import SinkError, StoreError
from tailrace.log import read_genesis
from tailrace.log.epochs import newest_fence
from tailrace.model import Relation
from tailrace.sinks.letters.dead_letter import DeadLetters, first_letters, lanes_of
from tailrace.sinks.letters.letter import Letter
from tailrace.sinks.letters.message import Message, offset_part, sequence_of, table_code
from tailrace.sinks.letters.parked import Parked, ToPark
from tailrace.sinks.letters.redrive import Errand, Portion, Requests, Sent
from tailrace.sinks.letters.ticker import Ticker
from tailrace.sinks.letters.turns import Turns
from tailrace.sinks.queue.copier import Copier
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.options import QueueOptions
from tailrace.sinks.queue.outbox import Outbox
from tailrace.sinks.queue.outlet import Outlet
from tailrace.sinks.queue.passage import Passage
from tailrace.sinks.queue.progress import Progress
from tailrace.sinks.queue.sender import CLOCKS_S, Sender, Sought
from tailrace.sinks.queue.slices import slices
from tailrace.sinks.sink import Batch, Holds, Load, stream_of
from tailrace.storage import Store

logger = logging.getLogger(__name__)

REQUESTS_S: Final = 1.0
"""How often to look for what operators ask for."""


class QueueSink:
    """Delivers one stream, or the replays of one, to one queue."""

    holds = Holds.MESSAGES

    def __init__(
        self,
        kind: str,
        sender: Sender,
        store: Store,
        stream: str,
        options: QueueOptions,
        *,
        dead_letter_sender: Sender | None = None,
    ) -> None:
        """`kind` is the type of the sink, as dead letters name it. `dead_letter_sender` gets a copy
        of each of them.
        """
        self._kind = kind
        self._sender = sender
        self._renderer = Renderer(stream_of(stream), options.envelope, _database(store))
        # Whoever opens the sink has just taken the newest epoch, and looks again afterwards.
        self._fence = newest_fence(store, stream)
        self._letters = DeadLetters(store, stream, options.letters, self._fence)
        self._requests = Requests(store, stream)
        self._progress = Progress(store, stream, self._fence)
        self._store = store
        self._stream = stream
        self._portion = Portion(options.window.message_count, options.window.bytes_max)
        self._undelivered: DeadLetters | None = None
        self._parked: Parked | None = None
        self._redriven: set[str] = set()
        self._undeleted: set[str] = set()
        """The places of letters that were redriven, and may still be there."""
        self._begun: int | None = None
        self._passage: Passage | None = None
        self._lock = Turns()
        self._stop = threading.Event()
        self._outlet = Outlet(
            sender, options.window, request_count=options.request_count, stop=self._stop
        )
        self._copier: Copier | None = None
        if dead_letter_sender is not None:
            outbox = Outbox(store, stream, options.letters)
            self._copier = Copier(outbox, dead_letter_sender, stream, options.window)
            self._copier.start()
        self._ticker = Ticker(self.serve_requests, stream, every_s=REQUESTS_S, stop=self._stop)

    @property
    def retry_count(self) -> int:
        """How many messages were sent once more because the queue did not take them."""
        return self._outlet.retry_count

    def leave_out_undelivered(self) -> None:
        """Let a replay send nothing that waits among the dead letters of the stream itself: it was
        never delivered, and is going to be, in its order, by a redrive.
        """
        self._undelivered = DeadLetters(self._store, stream_of(self._stream))

    def prepare(self, relation: Relation) -> None:
        """A queue takes every table."""

    def write(self, batch: Batch) -> None:
        """Send the batch's messages; returns when each is at the queue or a dead letter."""
        with self._lock:
            passage = self._begin(batch.sequence)
            for part in slices(batch.tables):
                # What came before is settled, and counts no more for the window of this part.
                self._save(passage, passage.passed)
                self._send(passage, self._renderer.changes(part, batch.sequence, batch.replay))

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Send a TRUNCATE, then the rows, as read and not as inserted."""
        with self._lock:
            passage = self._begin(load.sequence)
            self._letters.outdo(load.relation.qualified, load.sequence)
            self._parked = None
            self._send(passage, [self._renderer.base_begin(load)])
            for part in rows:
                # What came before is settled, and counts no more for the window of this part.
                self._save(passage, passage.passed)
                self._send(passage, self._renderer.base(load, part))

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """Nothing is recorded."""
        return {}

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """Nothing is held."""
        return set()

    def stop(self) -> None:
        """Whatever waits to be tried again, or looks for what has arrived, is left to the next run:
        `write` and `load` come back with an error.
        """
        self._stop.set()

    def close(self) -> None:
        """See `stop`; whatever is under way is waited for."""
        self.stop()
        self._ticker.join()
        if self._copier is not None:
            self._copier.close()
        self._outlet.close()
        if self._begun is not None and self._sender.reads_back:
            with suppress(StoreError):
                self._progress.leave(self._begun)

    def _begin(self, sequence: int) -> Passage:
        """The passage of this batch: the one that was interrupted, if it is the same."""
        before, self._begun = self._passage, sequence
        if before is not None and before.sequence == sequence:
            before.passed = 0
            return before
        saved, arrived, parked = 0, frozenset[str](), frozenset[str]()
        if before is None:
            parked = self._letters.take_over(sequence)
        if before is None or before.sequence + 1 != sequence:
            # Another process may have left it behind, in part at the queue.
            saved, arrived = self._progress.count(sequence), self._arrived(sequence)
        if self._sender.reads_back and not saved:
            self._progress.save(sequence, 0)
        self._redriven = {place for place in self._redriven if sequence_of(place) >= sequence}
        self._passage = Passage(sequence, saved, arrived, parked)
        return self._passage

    def _arrived(self, sequence: int) -> frozenset[str]:
        if not self._sender.reads_back:
            return frozenset()
        since_s, until_s = self._progress.since_s(sequence), self._progress.until_s(sequence)
        found = frozenset[str]()
        if since_s is not None:
            last_s = None if until_s is None else until_s + CLOCKS_S
            found = self._sender.arrived(Sought(sequence, since_s - CLOCKS_S, last_s, self._stop))
        self._progress.resume()
        return found

    def _send(self, passage: Passage, messages: Sequence[Message]) -> None:
        first = passage.enter(messages)
        parked = self._parked
        if parked is None:
            self._letters.settle()
            parked = self._parked = Parked.of(lanes_of(self._letters.waiting()))
        settled = passage.settled_of(messages, first, self._redriven)
        if self._undelivered is not None:
            settled += _among(messages, first_letters(self._undelivered.waiting()))
        saved = max(0, passage.saved - first)
        window = self._outlet.window(messages, parked, settled, saved=saved)

        def save(frontier: int) -> None:
            self._save(passage, first + frontier)

        try:
            self._outlet.run(messages, window, park=self._put_letter, save=save)
        except BaseException:
            # What was not put among the letters is not parked either.
            self._parked = None
            raise
        finally:
            passage.note(first, window)

    def _save(self, passage: Passage, count: int) -> None:
        if count > passage.saved:
            self._progress.save(passage.sequence, count)
            passage.saved = count

    def _put_letter(self, message: Message, park: ToPark) -> None:
        if park.failure is not None:
            logger.warning(
                "message is a dead letter stream=%s table=%s event=%s error=%s",
                *(self._stream, message.table, message.event_id, park.failure),
            )
        letter = Letter.of(message, park, sink=self._kind, now=time.time())
        kept = self._letters.put(letter)
        if self._copier is not None:
            # A letter that is there while nobody has taken over counts, whoever takes over later.
            self._fence.check()
            self._copier.put(kept)

    def serve_requests(self) -> None:
        """Carry out what operators have asked for, in turns with batches."""
        for request in self._requests.pending():
            errand = Errand(
                request,
                self._requests,
                self._letters,
                self._redrive,
                portion=self._portion,
                now=time.time(),
            )
            while not errand.is_over:
                with self._lock:
                    self._turn(errand)
            self._undeleted.clear()
            logger.info(
                "dead letters %s stream=%s count=%d",
                *(request.action, self._stream, len(errand.done)),
            )

    def _turn(self, errand: Errand) -> None:
        is_over = True
        try:
            self._redriven.update(errand.turn(self._must_go_on))
            is_over = errand.is_over
        finally:
            # Not before: a lane of which all is sent is only taken to wait a while longer, what
            # comes there is found by a later turn, and listing all that wait takes its time.
            if is_over:
                self._parked = None

    def _must_go_on(self) -> None:
        if self._stop.is_set():
            raise SinkError("the stream was told to stop", retry=True)
        self._fence.check()

    def _redrive(self, messages: Sequence[Message], parked: Parked) -> Sent:
        known = {each.place for each in messages} & self._undeleted
        rest = [each for each in messages if each.place not in known]
        sent = self._outlet.send(rest, parked)
        # At once: what follows may fail, and an unfinished batch must not send these again, nor
        # the next try of the request.
        self._redriven.update(sent.delivered)
        self._undeleted.update(sent.delivered)
        return replace(sent, delivered=sent.delivered | known)


def _among(messages: Sequence[Message], letters: Mapping[tuple[str, str], str]) -> list[int]:
    """Those that have a letter, or stand behind one of their lane, by the first letter of each."""
    lanes = ((table_code(message.table), message.lane) for message in messages)
    return [
        at
        for at, (message, lane) in enumerate(zip(messages, lanes, strict=True))
        if lane in letters and offset_part(message.place) >= letters[lane]
    ]


def _database(store: Store) -> str:
    """The database that the log is of."""
    genesis = read_genesis(store)
    return str((genesis.note or {}).get("database", "")) if genesis else ""
