"""Which message may go next: the first of each lane, and nothing past a barrier of its table.

A message enters in the order of the batch and leaves when it is settled. In between it is the head
of its lane, behind another one of its lane, or behind a barrier.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import islice

from tailrace.sinks.letters.message import Message


class Lanes:
    """The open messages of a batch, by their places in it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._lanes: dict[tuple[str, str], deque[int]] = {}
        self._open_count: dict[str, int] = defaultdict(int)
        self._gates: dict[str, deque[int]] = {}
        """By table, what waits behind a barrier that is open or waits itself."""

    def lane(self, at: int) -> tuple[str, str]:
        """What the message must stay in order with."""
        message = self._messages[at]
        return message.table, message.lane

    def is_head(self, at: int) -> bool:
        """Whether nothing of its lane is before it."""
        return self._lanes[self.lane(at)][0] == at

    def behind(self, head: int) -> Iterator[int]:
        """The messages of a head's lane that have entered after it."""
        return islice(self._lanes[self.lane(head)], 1, None)

    def enter(self, at: int) -> bool:
        """Take the next message in; whether it is a head at once."""
        message = self._messages[at]
        table = message.table
        if table in self._gates or (message.is_barrier and self._open_count[table]):
            self._gates.setdefault(table, deque()).append(at)
            return False
        if message.is_barrier:
            self._gates[table] = deque()
        self._open_count[table] += 1
        queue = self._lanes.setdefault((table, message.lane), deque())
        queue.append(at)
        return len(queue) == 1

    def leave(self, at: int) -> list[int]:
        """Let a head go; returns those that are heads now."""
        table, _ = lane = self.lane(at)
        queue = self._lanes[lane]
        assert queue[0] == at, "a lane has lost its order"
        queue.popleft()
        self._open_count[table] -= 1
        if queue:
            return [queue[0]]
        del self._lanes[lane]
        return [] if self._open_count[table] else self._through_gate(table)

    def _through_gate(self, table: str) -> list[int]:
        """Nothing of the table is open: a barrier may go, or all that is before the next one."""
        heads: list[int] = []
        waiting = self._gates.pop(table, deque())
        while waiting and table not in self._gates:
            if self._messages[waiting[0]].is_barrier and self._open_count[table]:
                self._gates[table] = waiting
                return heads
            at = waiting.popleft()
            if self.enter(at):
                heads.append(at)
        if waiting:
            self._gates[table] = waiting
        return heads
