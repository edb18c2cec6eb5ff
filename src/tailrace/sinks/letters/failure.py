"""Why a message was not delivered.

    retriable        may pass by itself: throttling, 5xx, a time-out, and whatever is not known
    poison           this message will never be taken: it is no valid message there, or too large
    infrastructure   nothing will be taken until a person acts: access denied, stream missing

A retriable error that nobody answered (refused, timed out) says nothing about the message, so it
never makes a dead letter of it, however long it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What to do about an error."""

    RETRIABLE = "retriable"
    POISON = "poison"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message was not delivered. `is_answered` if the queue itself has said so; `is_shared`
    if it was said of a request as a whole, so that any one of its messages may be the reason.
    """

    kind: Kind
    code: str
    message: str
    hint: str = ""
    is_answered: bool = True
    is_shared: bool = False
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code
