"""What the core asks its shell to do, and the limits by which it decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.model import Lsn
from tailrace.postgres.frames import Frames


@dataclass(frozen=True, slots=True)
class Limits:
    """When to seal, when to wait, when to give up; times in seconds."""

    seal_bytes: int = 8 << 20
    seal_age_s: float = 0.050
    # A drained socket means that no more comes soon, but only after little has come: a sender that
    # is about as fast as we are leaves it drained after every row. See `trickle`.
    trickle_bytes: int = 128 << 10
    trickle_interval_s: float = 0.040
    # What a transaction weighs beside its bytes: some 400 in a second may be sealed one by one.
    trickle_transaction_bytes: int = 8 << 10
    part_bytes: int = 8 << 20
    pending_bytes_max: int = 32 << 20
    progress_interval_s: float = 1.0
    status_interval_s: float = 5.0
    # A server that shuts down asks again as soon as it is answered: thousands of times a second.
    reply_interval_s: float = 0.1
    receive_timeout_s: float = 30.0
    stall_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Seal:
    """Append these frames as a segment: whole transactions, or the Commit that ends parts."""

    frames: Frames


@dataclass(frozen=True, slots=True)
class StorePart:
    """Store a piece of the transaction that is being received."""

    frames: Frames


@dataclass(frozen=True, slots=True)
class DiscardParts:
    """Forget the stored parts: the log has that transaction already."""


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """Make an idle position durable."""

    position: Lsn


@dataclass(frozen=True, slots=True)
class SendStatus:
    """Tell Postgres what has been received and what is durable."""

    received: Lsn
    durable: Lsn
    request_reply: bool


class CloseReason(StrEnum):
    """Why the connection must be given up."""

    SILENT = "nothing came from postgres, though a reply was requested"
    STALLED = "nothing could be made durable"
    DISORDER = "postgres sent commits out of order"
    MALFORMED = "postgres sent something that cannot be read"


@dataclass(frozen=True, slots=True)
class Close:
    """Drop the connection and start again."""

    reason: CloseReason


Job = Seal | StorePart | DiscardParts | StoreProgress
Action = Job | SendStatus | Close
