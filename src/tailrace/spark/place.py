"""How far a read of one table is: in the log, or still in the base that it starts with.

Spark compares offsets as text, so there is one form of each. A stream's first offset names no base:
the end of its first batch does, and Spark keeps that. So a newer base that appears between two
tries of the first batch changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.model import ORIGIN, Lsn, Offset

_IN_BASE: Final = "base"


@dataclass(frozen=True, slots=True)
class Place:
    """`offset` is that of the last change read. In a base it is the base's position and the number
    of the last row; a base that is read to its end ends at `Offset.whole` of its position.
    """

    offset: Offset
    in_base: bool = False

    @property
    def base_position(self) -> Lsn | None:
        """Of which base; None if that is still to be decided."""
        return self.offset.commit_lsn or None

    def to_dict(self) -> dict[str, int]:
        """The one JSON form."""
        value = self.offset.to_dict()
        return {**value, _IN_BASE: 1} if self.in_base else value

    @classmethod
    def from_dict(cls, value: dict[str, int]) -> Place:
        """Read what `to_dict` wrote; raises ValueError."""
        return cls(Offset.from_dict(value), bool(value.get(_IN_BASE)))


BEFORE_BASE: Final = Place(ORIGIN, in_base=True)
"""Before the first row of whichever base is the newest when the first batch is planned."""
