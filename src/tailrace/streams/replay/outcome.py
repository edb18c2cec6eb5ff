"""What becomes of a request for a replay."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from tailrace.errors import SegmentCorrupt
from tailrace.streams.replay.request import Request

State = Literal["done", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request: how many changes were delivered, and why it was not more."""

    id: str
    state: State
    window: str
    change_count: int
    note: str
    ended_at: str

    def to_json(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Outcome:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise SegmentCorrupt("the outcome of a replay cannot be read") from error


def outcome_of(request: Request, state: State, change_count: int, note: str) -> Outcome:
    """What becomes of it now."""
    return Outcome(request.id, state, request.window, change_count, note, _now())


def outcome_of_unread(note: str) -> Outcome:
    """What becomes of a request that nobody can read."""
    return Outcome("unread", "failed", "a window that is not known", 0, note, _now())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
