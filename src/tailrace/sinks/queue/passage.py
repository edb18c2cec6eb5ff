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
    the queue has of it, `parked` the places of the letters that an earlier run has put of it.
    """

    sequence: int
    saved: int
    arrived: frozenset[str]
    parked: frozenset[str] = frozenset()
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
        known = _arrived(messages, self.arrived) | _passed(messages, redriven)
        # What is a letter is put once more, in case that its copy is not.
        before = _passed(messages, self.parked)
        known |= {at for at in before if messages[at].place not in self.parked}
        return [
            at
            for at in range(len(messages))
            if first + at < max(self.saved, self.frontier)
            or first + at in self.ahead
            or at in known
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


def _passed(messages: Sequence[Message], letters: Collection[str]) -> set[int]:
    """The places of messages that are letters, or were until they were redriven, and of what was
    settled before they became letters: sent again, it would come behind them. That is what is
    before one in its lane; and of its table a barrier before it, with all that is before that.
    """
    found: set[int] = set()
    if not letters:
        return found
    lanes: set[tuple[str, str]] = set()
    touched, closed = set[str](), set[str]()
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        table, lane = message.table, (message.table, message.lane)
        if message.place in letters:
            lanes.add(lane)
            touched.add(table)
        if message.is_barrier and table in touched:
            closed.add(table)
        if lane in lanes or table in closed:
            found.add(at)
    return found
