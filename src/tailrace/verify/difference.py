"""What a comparison finds."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from tailrace.verify.ranges import Bounds
from tailrace.verify.shape import ComparedColumn, Row, Shape, Text


@dataclass(frozen=True, slots=True)
class Difference:
    """One key with the row that each side has for it; None where a side has none."""

    key: Mapping[str, Text]
    source: Mapping[str, Text] | None
    lake: Mapping[str, Text] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in which the two rows differ."""
        if self.source is None or self.lake is None:
            return ()
        return tuple(name for name in self.source if self.source[name] != self.lake[name])


class Found(NamedTuple):
    """A difference, and the bytes of its key, by which its row is found again."""

    key: Row
    difference: Difference


@dataclass(frozen=True, slots=True)
class RangeDifference:
    """A range of the key's first column in which the two sides differ: from `low` on, up to and
    without `high`; None without end.
    """

    low: Text
    high: Text
    source_rows: int
    lake_rows: int

    @classmethod
    def of(cls, bounds: Bounds, number: int, source_rows: int, lake_rows: int) -> RangeDifference:
        low, high = (None if end is None else str(end) for end in bounds.ends(number))
        return cls(low, high, source_rows, lake_rows)


def differences(ours: Iterable[Row], theirs: Iterable[Row], shape: Shape) -> Iterator[Found]:
    """Pair the rows of the same cells by key; equal ones are left out. A key may occur twice: a
    table may have none, and a lake may be wrong in that way too.
    """
    source, lake = _by_key(ours, shape), _by_key(theirs, shape)
    for key in sorted(source.keys() | lake.keys(), key=_order):
        only_ours, only_theirs = source[key] - lake[key], lake[key] - source[key]
        for a, b in zip_longest(only_ours.elements(), only_theirs.elements()):
            difference = Difference(
                key=_named(shape.key, key),
                source=None if a is None else _named(shape.columns, a),
                lake=None if b is None else _named(shape.columns, b),
            )
            yield Found(key, difference)


def _order(key: Row) -> tuple[tuple[int, bytes], ...]:
    """Whole numbers by value, as shorter ones come first; anything else by its bytes."""
    return tuple((len(v) if v and v.isdigit() else 0, v or b"") for v in key)


def _by_key(rows: Iterable[Row], shape: Shape) -> defaultdict[Row, Counter[Row]]:
    result: defaultdict[Row, Counter[Row]] = defaultdict(Counter)
    for row in rows:
        result[row[: shape.key_count]][row] += 1
    return result


def _named(columns: tuple[ComparedColumn, ...], row: Row) -> dict[str, Text]:
    pairs = zip(columns, row, strict=True)
    return {column.name: _readable(column, text) for column, text in pairs}


def _readable(column: ComparedColumn, text: bytes | None) -> Text:
    if text is None:
        return None
    if column.is_float and len(text) in (8, 16):
        (value,) = struct.unpack(">f" if len(text) == 8 else ">d", bytes.fromhex(text.decode()))
        return repr(value)
    return text.decode(errors="backslashreplace")
