"""The seam between delivery and a queue: some messages out, one outcome for each back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Final, Protocol

from tailrace.errors import SinkError
from tailrace.sinks.letters.failure import Failure
from tailrace.sinks.letters.message import Message

CLOCKS_S: Final = 60.0
"""How far the clocks of the store, of this machine and of the queue may be apart."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What fits into one request. `overhead_bytes` is what a message takes beside its payload.

    `is_ordered` if a request is taken whole or not at all, in order: then it may hold several
    messages of one lane.
    """

    message_count: int
    request_bytes: int
    message_bytes: int
    overhead_bytes: int = 0
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class Sought:
    """What is looked for at a queue: messages of one batch, sent since a time and, if that is
    known, no later than another, in seconds since 1970. `stop` ends the search.
    """

    sequence: int
    since_s: float
    until_s: float | None
    stop: Event

    def go_on(self) -> None:
        """Raise SinkError if the search is to end."""
        if self.stop.is_set():
            raise SinkError("the stream was told to stop", retry=True)


class Sender(Protocol):
    """A queue. Thread-safe: requests with different lanes are sent side by side.

    A message is delivered when the queue has it durably. A sender tries nothing twice and never
    raises for what the queue says or does not say: that is a Failure, by the table in `errors`.
    """

    @property
    def limits(self) -> RequestLimits:
        """What `send` may be given."""
        ...

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        """One request; for each message None if it is delivered, else why not."""
        ...

    @property
    def reads_back(self) -> bool:
        """Whether `arrived` can tell anything."""
        ...

    def arrived(self, sought: Sought) -> frozenset[str]:
        """The delivery ids of what the queue has taken of that, and maybe of other batches. What
        others have sent meanwhile may be a thousand times as much: it is not held.

        Raises SinkError if the queue cannot be read now, or if the search is to end.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
