"""The dead letters of a stream at its target: which keys wait, and how one more comes to.

A letter is durable before the transaction that goes past its record commits, and between the two
the epoch is looked at: if nobody has taken the stream over by then, whoever does so later finds
every letter of the batch, whether or not that commits. If somebody has, nothing is committed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import psycopg

from tailrace.errors import SinkError, StoreError
from tailrace.log.epochs import newest_fence
from tailrace.postgres.sqlstate import source_error
from tailrace.sinks.keys import Rows
from tailrace.sinks.letters.dead_letter import DeadLetters, first_letters
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.letter import Letter, LetterLimits
from tailrace.sinks.letters.message import Message, offset_part, table_code
from tailrace.sinks.letters.parked import Parked, ToPark
from tailrace.sinks.letters.redrive import Errand, Portion, Requests, Sent
from tailrace.sinks.letters.turns import Turns
from tailrace.sinks.postgres.records import Records
from tailrace.sinks.sink import stream_of
from tailrace.storage import Store

KIND: Final = "postgres"

PORTION: Final = Portion(letter_count=1000, bytes_max=32 << 20)
"""How many letters are read and written at once in a redrive."""

logger = logging.getLogger(__name__)


class Parking:
    """Puts records aside as dead letters. Safe to use from the threads of one batch."""

    def __init__(self, store: Store, stream: str, limits: LetterLimits) -> None:
        # Whoever opens the sink has just taken the newest epoch, and looks again afterwards.
        self._fence = newest_fence(store, stream)
        self._letters = DeadLetters(store, stream, limits, self._fence)
        self._requests = Requests(store, stream)
        self._stream = stream
        self._has_begun = False
        self._lanes: dict[str, set[str]] | None = None
        self._places: set[str] = set()
        self._is_sure = True
        self._lock = threading.Lock()

    def begin(self, sequence: int) -> None:
        """A batch or a load comes; what waits from before is durable when this returns."""
        if not self._has_begun:
            self._letters.take_over(sequence)
            self._has_begun = True
        if self._lanes is None or not self._is_sure:
            self._letters.settle()
            names = self._letters.waiting()
            lanes: dict[str, set[str]] = {}
            for name in names:
                lanes.setdefault(name.table_code, set()).add(name.lane)
            self._lanes, self._places = lanes, {name.place for name in names}
            self._is_sure = True

    def waits(self, table: str) -> bool:
        """Whether a row of the table waits."""
        return table_code(table) in self._of_tables()

    def free(self, records: Records, rows: Rows) -> Rows:
        """Those that no letter is before; the others are put behind theirs."""
        lanes = self._of_tables().get(table_code(records.relation.qualified))
        if not lanes:
            return rows
        held = [int(at) for at in rows if records.lane(int(at)) in lanes]
        for at in held:
            self._put(records.message(at), None)
        return rows[~np.isin(rows, held)] if held else rows

    def refuse(self, records: Records, at: int, error: psycopg.Error) -> None:
        """The record parks its key. Raises SinkError if too many wait."""
        message = records.message(at)
        failure = Failure(Kind.POISON, str(source_error(error)), "")
        logger.warning(
            "row is a dead letter stream=%s table=%s event=%s state=%s constraint=%s",
            # What the server says may repeat values of the row: that is for the letter alone.
            *(self._stream, message.table, message.event_id),
            *(error.sqlstate, error.diag.constraint_name or ""),
        )
        self._put(message, failure)

    def leaves_out(self, records: Records, at: int) -> bool:
        """What is not written is put aside."""
        return False

    def newest(self, table: str, lane: str, before: int) -> Message | None:
        """What waits last in a lane, of batches before this one."""
        code = table_code(table)
        if lane not in self._of_tables().get(code, ()):
            return None
        return _newest(self._letters, code, lane, before)

    def outdo(self, table: str, sequence: int) -> None:
        """The batch of this number leaves no row of the table: older letters count no more."""
        self._letters.outdo(table, sequence)
        with self._lock:
            names = [n for n in self._letters.waiting() if n.table_code == table_code(table)]
            lanes = {name.lane for name in names}
            if lanes:
                self._of_tables()[table_code(table)] = lanes
            else:
                self._of_tables().pop(table_code(table), None)

    def look(self) -> None:
        """Raise LogFenced if somebody else has taken the stream over."""
        self._fence.check()

    def forget(self) -> None:
        """What waits is to be looked up anew."""
        self._lanes = None

    def serve(
        self,
        send: Callable[[Sequence[Message], Parked], Sent],
        turns: Turns,
        stop: threading.Event,
        *,
        is_whole: bool,
    ) -> None:
        """Carry out what operators have asked for, in turns with batches."""

        def must_go_on() -> None:
            if stop.is_set():
                raise SinkError("the stream was told to stop", retry=True)
            self._fence.check()

        for request in self._requests.pending():
            errand = Errand(
                request,
                self._requests,
                self._letters,
                send,
                portion=PORTION,
                now=time.time(),
                is_whole=is_whole,
            )
            while not errand.is_over:
                with turns:
                    try:
                        errand.turn(must_go_on)
                    finally:
                        self.forget()
            logger.info(
                "dead letters %s stream=%s count=%d",
                *(request.action, self._stream, len(errand.done)),
            )

    def _put(self, message: Message, failure: Failure | None) -> None:
        with self._lock:
            if message.place not in self._places:
                park = ToPark(0, 1 if failure else 0, failure)
                try:
                    self._letters.put(Letter.of(message, park, sink=KIND, now=time.time()))
                except StoreError:
                    # It may be there all the same: its row must not be taken the next time, or it
                    # would be redriven over whatever comes after it.
                    self._is_sure = False
                    raise
                self._places.add(message.place)
            lanes = self._of_tables().setdefault(table_code(message.table), set())
            lanes.add(message.lane)

    def _of_tables(self) -> dict[str, set[str]]:
        assert self._lanes is not None, "a batch has begun"
        return self._lanes


class LeftOut:
    """Leaves out of a replay what waits among the dead letters of its stream: it was never
    delivered, and is going to be, in its order, by a redrive. Nothing is put aside.
    """

    def __init__(self, store: Store, stream: str) -> None:
        self._letters = DeadLetters(store, stream_of(stream))
        self._first: dict[tuple[str, str], str] = {}

    def begin(self) -> None:
        """A batch comes."""
        self._first = first_letters(self._letters.waiting())

    def waits(self, table: str) -> bool:
        """Whether a row of the table waits."""
        return any(code == table_code(table) for code, _ in self._first)

    def free(self, records: Records, rows: Rows) -> Rows:
        """Those that do not wait."""
        free = [not self.leaves_out(records, int(at)) for at in rows]
        return rows[np.array(free, dtype=np.bool_)]

    def leaves_out(self, records: Records, at: int) -> bool:
        """Whether it is of a row that waits; but a change before its first letter was delivered."""
        first = self._first.get((table_code(records.relation.qualified), records.lane(at)))
        if first is None:
            return False
        return not records.is_changes or offset_part(records.places[at]) >= first

    def refuse(self, records: Records, at: int, error: psycopg.Error) -> None:
        """A replay ends there."""
        raise error

    def outdo(self, table: str, sequence: int) -> None:
        """The letters are the stream's own affair."""

    def newest(self, table: str, lane: str, before: int) -> Message | None:
        """What waits last in a lane, of batches before this one."""
        code = table_code(table)
        return _newest(self._letters, code, lane, before) if (code, lane) in self._first else None


def _newest(letters: DeadLetters, code: str, lane: str, before: int) -> Message | None:
    name = letters.newest(code, lane, before=before)
    return letters.read(name).message if name is not None else None
