"""What a queue is sent: one message for each change, in the order of the log.

A lane is what must stay in order: the row of a table, known by its key. A barrier (a TRUNCATE)
stands between everything of its table that comes before it and everything after.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Final

TABLE_LANE: Final = "table"
"""The lane of a barrier: no row has it."""

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Message:
    """`event_id` is the same whenever the same change is sent. `place` is where the change stands,
    so that places sort as the log does: the number of the batch, the offset, and which half of a
    changed key. `key` is the row's key as JSON, empty for a row without one and for a barrier.
    `replay` is the id of the replay that sends it again, if one does.
    """

    event_id: str
    place: str
    table: str
    lane: str
    key: str
    payload: bytes
    replay: str = ""

    @property
    def sequence(self) -> int:
        """The number of the batch that it belongs to."""
        return sequence_of(self.place)

    @property
    def delivery_id(self) -> str:
        """The same only if it is sent again by mistake: not if a load brings it anew, or a replay,
        which mean to.
        """
        return delivery_id(self.event_id, batch=str(self.sequence), replay=self.replay)

    @property
    def is_barrier(self) -> bool:
        """Whether it must not change places with any message of its table."""
        return self.lane == TABLE_LANE

    @property
    def partition_key(self) -> str:
        """What sends all messages of a row the same way; at most 256 characters."""
        return self.lane if self.key else self.event_id


def delivery_id(event_id: str, *, batch: str, replay: str) -> str:
    """What tells a message from the same one of another batch, or of a replay. The numbers of a
    stream's batches never come back.
    """
    return f"{event_id}@{batch}@{replay}"


def lane_of(table: str, key: str) -> str:
    """The same for the same row, always and everywhere: 32 hex digits."""
    return blake2b(f"{table}\0{key}".encode(), digest_size=_DIGEST_BYTES).hexdigest()


@cache
def table_code(table: str) -> str:
    """A table's name as part of an object's name."""
    return blake2b(table.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def place_of(sequence: int, commit_lsn: int, ordinal: int, half: int) -> str:
    """Fixed width, so that text sorts as the log does. A load's TRUNCATE has ordinal -1."""
    return f"{sequence:016d}-{commit_lsn:016X}-{ordinal + 1:016X}-{half}"


def sequence_of(place: str) -> int:
    """The number of the batch that a place is in."""
    return int(place.partition("-")[0])


def offset_part(place: str) -> str:
    """A place without the number of its batch, which a replay has others of."""
    return place.partition("-")[2]
