"""How far a batch has come at its queue: what is known to be settled is not sent again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tailrace.sinks.letters.message import Message
from tailrace.sinks.queue.window import Window


@dataclass(slots=True)
class Passage:
    """A batch's messages are numbered from its beginning, however many at a time they come: so
    many of them were handed over; everything before the frontier is settled, and so is what is
    ahead of it. `saved` is how many are durably known to be, `arrived` are the delivery ids of what
    the queue has of it.
    """

    sequence: int
    saved: int
    arrived: frozenset[str]
    passed: int = 0
    frontier: int = 0
    ahead: set[int] = field(default_factory=set)

    def enter(self, messages: Sequence[Message]) -> int:
        """Some more are handed over; returns the number of the first."""
        first, self.passed = self.passed, self.passed + len(messages)
        return first

    def settled_of(
        self, messages: Sequence[Message], first: int, redriven: Collection[str]
    ) -> list[int]:
        """Those of some messages that need not be sent; `redriven` are places that were."""
        arrived = _arrived(messages, self.arrived)
        return [
            at
            for at, message in enumerate(messages)
            if first + at < max(self.saved, self.frontier)
            or first + at in self.ahead
            or at in arrived
            or message.place in redriven
        ]

    def note(self, first: int, window: Window) -> None:
        """What a window over the messages from `first` on has settled."""
        self.frontier = max(self.frontier, first + window.frontier)
        self.ahead.update(first + at for at in window.ahead)
        self.ahead = {at for at in self.ahead if at >= self.frontier}


def _arrived(messages: Sequence[Message], delivery_ids: frozenset[str]) -> set[int]:
    """The places of messages that have arrived: with one, those before it in its lane, which a
    topic that is compacted shows no more.
    """
    found: set[int] = set()
    if not delivery_ids:
        return found
    lanes: set[tuple[str, str]] = set()
    for at in range(len(messages) - 1, -1, -1):
        lane = messages[at].table, messages[at].lane
        if lane in lanes or messages[at].delivery_id in delivery_ids:
            lanes.add(lane)
            found.add(at)
    return found
