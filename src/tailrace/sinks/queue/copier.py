"""Sends copies of dead letters to a queue of their own, in a thread of its own.

The letters beside the log are the truth; a copy tells of one. Nobody waits for the queue: what it
does not take is tried again, in the order of each key, until it does. A copy that it will never
take, because it is too large for instance, goes without its payload.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Final

from tailrace.backoff import Backoff
from tailrace.errors import SinkError, TailraceError
from tailrace.sinks.letters.letter import Letter
from tailrace.sinks.letters.message import Message
from tailrace.sinks.letters.parked import Parked
from tailrace.sinks.queue.limits import WindowLimits
from tailrace.sinks.queue.outbox import Outbox
from tailrace.sinks.queue.outlet import Outlet
from tailrace.sinks.queue.sender import Sender

logger = logging.getLogger(__name__)

_LETTERS_AT_ONCE: Final = 1000
_BYTES_AT_ONCE: Final = 8 << 20


class Copier:
    """One stream's copies to one queue."""

    def __init__(self, outbox: Outbox, sender: Sender, stream: str, limits: WindowLimits) -> None:
        """`limits` say how long a copy is tried before all of them wait."""
        self._outbox = outbox
        self._stream = stream
        self._stop = threading.Event()
        self._news = threading.Event()
        limits = replace(limits, parks_exhausted=False)
        self._outlet = Outlet(sender, limits, request_count=1, stop=self._stop)
        self._backoff = Backoff(Random())
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="tailrace-copies", daemon=True)

    def start(self) -> None:
        """Begin, with what an earlier run has left."""
        self._thread.start()

    def put(self, letter: Letter) -> None:
        """Keep a copy until the queue has it; raises SinkError if too many wait, or StoreError."""
        self._outbox.put(letter)
        self._news.set()

    def close(self) -> None:
        """What waits is left to the next run."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self._outlet.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            try:
                self._send_all()
                self._said = ""
                self._backoff.reset()
                if not self._stop.is_set():
                    # Who stops it says so first, and then that there is news.
                    self._news.wait()
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if str(error) != self._said and not self._stop.is_set():
            self._said = str(error)
            logger.warning(
                "copies of dead letters wait stream=%s count=%d error=%s",
                *(self._stream, len(self._outbox), error),
                exc_info=None if isinstance(error, TailraceError) else error,
            )
        self._stop.wait(self._backoff.next_s())

    def _send_all(self) -> None:
        """Send what waits; raises SinkError if the queue does not take it, or StoreError."""
        while not self._stop.is_set():
            some = self._outbox.oldest(letter_count=_LETTERS_AT_ONCE, bytes_max=_BYTES_AT_ONCE)
            if not some:
                return
            self._send(some)

    def _send(self, letters: Sequence[Letter]) -> None:
        """Until each is sent: whole or, if that is refused, without its payload."""
        short: set[str] = set()
        while letters:
            copies = [
                copy_of(letter, self._stream, is_short=letter.place in short) for letter in letters
            ]
            sent = self._outlet.send(copies, Parked())
            if sent.delivered:
                self._outbox.remove(sent.delivered)
            if sent.error is not None:
                raise sent.error
            refused = {place: why.failure for place, why in sent.refused.items() if why.failure}
            for place in refused.keys() & short:
                raise SinkError(f"a copy is refused: {refused[place]}", retry=True)
            short |= refused.keys()
            letters = [letter for letter in letters if letter.place in sent.refused]


def copy_of(letter: Letter, stream: str, *, is_short: bool = False) -> Message:
    """What the queue gets: the letter as JSON, in it the payload as it was sent, or null."""
    facts: dict[str, object] = {"stream": stream, **asdict(letter)}
    del facts["payload"]
    facts["payload_bytes"] = len(letter.payload.encode())
    head = json.dumps(facts, ensure_ascii=False).removesuffix("}")
    payload = "null" if is_short else letter.payload
    return replace(letter.message, payload=f'{head}, "payload": {payload}}}'.encode())
