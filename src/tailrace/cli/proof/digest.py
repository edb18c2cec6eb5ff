"""What both sides compute, so that equal tables have equal sums whatever the order of their rows.

A row is the text of its values, each preceded by its length, so that no two rows run together to
the same text and NULL is unlike any text. A bucket, chosen by the key, holds the count of its rows
and the sum of the first 64 bits of their SHA-256. If two tables differ, only the buckets in which
they differ need to be read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Text: TypeAlias = str | None
Row: TypeAlias = tuple[Text, ...]
Buckets: TypeAlias = Mapping[int, tuple[int, int]]
"""Count and sum by bucket; a bucket without rows is left out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that are compared, and which of them are the key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Where the key is among the columns."""
        return tuple(self.columns.index(name) for name in self.key)


def framed(text: Text) -> str:
    """A value as a part of a row.

    >>> framed("ab"), framed(""), framed(None)
    ('2:ab,', '0:,', '-,')
    """
    return "-," if text is None else f"{len(text)}:{text},"


def bucket(row: Sequence[Text], key_positions: Sequence[int]) -> int:
    """The bucket of a row, by its key."""
    return _sha256(framed(row[position]) for position in key_positions)[0]


def add_up(rows: Iterable[Row], shape: Shape) -> Buckets:
    """Sum up rows by bucket."""
    counts, sums = [0] * 256, [0] * 256
    key_positions = shape.key_positions
    for row in rows:
        at = bucket(row, key_positions)
        counts[at] += 1
        sums[at] += int.from_bytes(_sha256(map(framed, row))[:8], "big", signed=True)
    return {at: (counts[at], sums[at]) for at in range(256) if counts[at]}


def within(rows: Iterable[Row], shape: Shape, buckets: frozenset[int]) -> Iterator[Row]:
    """Only the rows that are in these buckets."""
    key_positions = shape.key_positions
    return (row for row in rows if bucket(row, key_positions) in buckets)


def _sha256(parts: Iterable[str]) -> bytes:
    return hashlib.sha256("".join(parts).encode()).digest()
