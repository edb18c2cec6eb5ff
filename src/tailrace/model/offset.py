"""Where a change stands in the log: the end LSN of its commit, then its place in the transaction.

This is the only order used anywhere. A position that a reader has reached is the offset of the
last change it has, so a range of changes is always `(after, up to and including]`.
`Offset.whole(lsn)` stands after every change of every transaction that ends at or before `lsn`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

from tailrace.model.lsn import Lsn

ORDINAL_MAX: Final = (1 << 63) - 1
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """`(commit_lsn, ordinal)`: ordinals count a transaction's row changes from 0.

    >>> Offset.parse("0/16B3748:3")
    Offset(commit_lsn=Lsn('0/16B3748'), ordinal=3)
    >>> str(Offset.whole(Lsn(0x16B3748)))
    '0/16B3748'
    """

    commit_lsn: Lsn
    ordinal: int

    def __post_init__(self) -> None:
        if not 0 <= self.ordinal <= ORDINAL_MAX:
            raise ValueError(f"ordinal out of range: {self.ordinal}")

    @classmethod
    def whole(cls, lsn: int) -> Self:
        """The position after every change that ends at or before `lsn`."""
        return cls(Lsn(lsn), ORDINAL_MAX)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X/Y` (whole transactions) or `X/Y:ordinal`; raises ValueError."""
        lsn, colon, ordinal = text.partition(":")
        return cls(Lsn.parse(lsn), int(ordinal) if colon else ORDINAL_MAX)

    @property
    def is_whole(self) -> bool:
        """True if no transaction is cut at this position."""
        return self.ordinal == ORDINAL_MAX

    def to_dict(self) -> dict[str, int]:
        """The one JSON form, with a fixed key order: Spark compares offsets as text."""
        return {"v": _VERSION, "lsn": int(self.commit_lsn), "ord": self.ordinal}

    @classmethod
    def from_dict(cls, value: dict[str, int]) -> Self:
        """Read what `to_dict` wrote; raises ValueError."""
        match value:
            case {"v": version, "lsn": int(lsn), "ord": int(ordinal)} if (
                version == _VERSION and lsn >= 0
            ):
                return cls(Lsn(lsn), ordinal)
        raise ValueError(f"not an offset of version {_VERSION}: {value!r}")

    def to_json(self) -> str:
        """`to_dict` as canonical text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; raises ValueError."""
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        return str(self.commit_lsn) if self.is_whole else f"{self.commit_lsn}:{self.ordinal}"


ORIGIN: Final = Offset.whole(0)
"""Before every change."""
