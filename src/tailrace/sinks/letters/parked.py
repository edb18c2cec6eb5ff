"""Which lanes wait behind a dead letter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.sinks.letters.failure import Failure
from tailrace.sinks.letters.message import TABLE_LANE, Message, table_code


@dataclass(frozen=True, slots=True)
class ToPark:
    """A message, by its place in the batch, for the dead letters; without a failure it only waits
    behind another one.
    """

    at: int
    attempt_count: int
    failure: Failure | None


@dataclass(slots=True)
class Parked:
    """The lanes that have dead letters, by the code of their table.

    With a barrier among them the whole table waits: what comes after the barrier must not be seen
    before it.
    """

    lanes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, letters: Iterable[tuple[str, str]]) -> Parked:
        """From the code of the table and the lane of each letter."""
        parked = cls()
        for code, lane in letters:
            parked.lanes[code].add(lane)
        return parked

    def add(self, message: Message) -> None:
        """From now on the message's lane waits."""
        self.lanes[table_code(message.table)].add(message.lane)

    def holds(self, message: Message) -> bool:
        """Whether the message has to wait."""
        waiting = self.lanes.get(table_code(message.table))
        if not waiting:
            return False
        return message.is_barrier or TABLE_LANE in waiting or message.lane in waiting
