"""A dead letter: a message that was not taken, with why and where it came from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn
from tailrace.sinks.letters.message import Message, sequence_of
from tailrace.sinks.letters.parked import ToPark


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that waits. `error` is empty if it only waits behind another one of its lane."""

    event_id: str
    table: str
    key: str
    lane: str
    place: str
    offset: str
    sink: str
    error: str
    kind: str
    attempt_count: int
    parked_at: str
    payload: str

    @classmethod
    def of(cls, message: Message, park: ToPark, *, sink: str, now: float) -> Letter:
        """What becomes of a message that `sink` has not taken."""
        _, lsn, ordinal, _ = message.place.split("-")
        failure = park.failure
        return cls(
            event_id=message.event_id,
            table=message.table,
            key=message.key,
            lane=message.lane,
            place=message.place,
            offset=f"{Lsn.from_hex16(lsn)}:{int(ordinal, 16) - 1}",
            sink=sink,
            error=str(failure) if failure else "",
            kind=str(failure.kind) if failure else "",
            attempt_count=park.attempt_count,
            parked_at=datetime.fromtimestamp(now, UTC).isoformat(),
            payload=message.payload.decode(),
        )

    @property
    def message(self) -> Message:
        """As it is sent."""
        payload = self.payload.encode()
        return Message(self.event_id, self.place, self.table, self.lane, self.key, payload)

    def to_json(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> Letter:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise SegmentCorrupt(f"{key} cannot be read") from error


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """So much may wait; past it the stream stops."""

    letter_count: int = 100_000
    bytes_max: int = 1 << 30

    def have_room(self, count: int, size: int) -> bool:
        """Whether one more, of which the sum of bytes is `size`, may join `count` others."""
        return count < self.letter_count and size <= self.bytes_max


@dataclass(frozen=True, slots=True)
class LetterName:
    """A letter as a listing shows it. `is_outdone` if its table was loaded or emptied since;
    `older_keys` are those of earlier epochs, if a take-over was not finished.
    """

    key: str
    table_code: str
    lane: str
    place: str
    size: int
    is_outdone: bool
    epoch: int = 0
    older_keys: tuple[str, ...] = ()

    @classmethod
    def parse(cls, key: str, size: int, loaded: dict[str, int]) -> LetterName:
        """From its key; `loaded` has the number of the newest load by the code of a table."""
        code, lane, last = key.split("/")[-3:]
        place, epoch, _ = last.split(".")
        is_outdone = sequence_of(place) < loaded.get(code, 0)
        return cls(key, code, lane, place, size, is_outdone, int(epoch))

    @property
    def sequence(self) -> int:
        """The number of the batch that it belongs to."""
        return sequence_of(self.place)

    @property
    def table_lane(self) -> tuple[str, str]:
        """The code of its table, and its lane."""
        return self.table_code, self.lane
