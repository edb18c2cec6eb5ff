"""A position in the write-ahead log, as 64 bits that never go back.

The low 56 bits are Postgres' own LSN. The top byte is the era: 0 until a failover or a restore
makes Postgres' LSNs start over, then one more each time, at most 127 so that a position fits a
signed long everywhere.
"""

from __future__ import annotations

import re
from typing import Final, Self

ERA_SHIFT: Final = 56
ERA_MAX: Final = 127
WAL_MASK: Final = (1 << ERA_SHIFT) - 1

_HEX16 = re.compile(r"[0-9A-F]{16}")
_TEXT = re.compile(r"(?:(\d{1,3})@)?([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """An int that prints as Postgres prints it.

    >>> Lsn.parse("0/16B3748")
    Lsn('0/16B3748')
    >>> str(Lsn(0x16B3748)), Lsn(0x16B3748).hex16
    ('0/16B3748', '00000000016B3748')
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X/Y`, or `ERA@X/Y`; raises ValueError."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r}")
        era, high, low = match.groups()
        return cls.of((int(high, 16) << 32) | int(low, 16), era=int(era or 0))

    @classmethod
    def of(cls, wal: int, *, era: int) -> Self:
        """The position of Postgres' own `wal` LSN within `era`."""
        if not (0 <= wal <= WAL_MASK and 0 <= era <= ERA_MAX):
            raise ValueError(f"position out of range: wal {wal:#x}, era {era}")
        return cls((era << ERA_SHIFT) | wal)

    @classmethod
    def from_hex16(cls, text: str) -> Self:
        """Read the 16 hex digits used in object names."""
        if _HEX16.fullmatch(text) is None:
            raise ValueError(f"not 16 hex digits: {text!r}")
        return cls(int(text, 16))

    @property
    def hex16(self) -> str:
        """16 upper-case hex digits: sorts as text the way the number sorts."""
        return f"{int(self):016X}"

    @property
    def era(self) -> int:
        """How often Postgres' LSNs have started over."""
        return int(self) >> ERA_SHIFT

    @property
    def wal(self) -> int:
        """Postgres' own LSN within the era."""
        return int(self) & WAL_MASK

    def __str__(self) -> str:
        plain = f"{self.wal >> 32:X}/{self.wal & 0xFFFFFFFF:X}"
        return f"{self.era}@{plain}" if self.era else plain

    def __repr__(self) -> str:
        return f"Lsn('{self}')"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
