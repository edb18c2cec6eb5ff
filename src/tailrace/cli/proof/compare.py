"""Compares the two sides, and finds the first rows in which they differ."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from tailrace.cli.proof.digest import Buckets, Row, Shape, Text, add_up, within
from tailrace.cli.proof.lake import LakeTable
from tailrace.cli.proof.source import Snapshot, SourceTable, snapshot
from tailrace.sinks.delta.place import escape

_DIFFERENCES_MAX: Final = 5
_BUCKETS_READ_MAX: Final = 4


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


@dataclass(frozen=True, slots=True)
class TableProof:
    """Whether a lake table is equal to its source, and if not, some of the reasons.

    `problem` says why rows could not be compared at all. A column that only the lake has is no
    difference: the source may have dropped it.
    """

    table: str
    source_rows: int
    lake_rows: int
    equal: bool
    differences: tuple[Difference, ...] = ()
    problem: str = ""


def prove(dsn: str, lake: str, tables: Sequence[str]) -> tuple[TableProof, ...]:
    """Compare each table (`schema.name`) under one snapshot of the source with its lake table.

    The lake must be at rest and have everything that is committed in the source.
    """
    with snapshot(dsn) as source:
        return tuple(_prove(source, lake, table) for table in tables)


def _prove(source: Snapshot, lake: str, name: str) -> TableProof:
    table = source.find(name)
    if table is None:
        return TableProof(name, 0, 0, False, problem="the source has no such table")
    uri = f"{lake.rstrip('/')}/{escape(table.schema)}/{escape(table.name)}"
    target = LakeTable.open(uri)
    shape = _shape(table, target.columns if target else frozenset())
    ours = source.buckets(table, shape)
    if target is None:
        return TableProof(name, _count(ours), 0, False, problem=f"no lake table at {uri}")
    if missing := [column for column in shape.columns if column not in target.columns]:
        problem = f"the lake table has no column {', '.join(missing)}"
        return TableProof(name, _count(ours), target.count(), False, problem=problem)
    theirs = add_up(target.rows(shape.columns), shape)
    differences = _differences(source, table, target, shape, _unlike(ours, theirs))
    return TableProof(name, _count(ours), _count(theirs), ours == theirs, differences)


def _shape(table: SourceTable, lake_columns: frozenset[str]) -> Shape:
    """All columns; a generated one only if the lake has it, for most publications leave it out."""
    compared = [c for c in table.columns if not c.generated or c.name in lake_columns]
    columns = tuple(column.name for column in compared)
    return Shape(columns, tuple(column.name for column in compared if column.in_key) or columns)


def _count(buckets: Buckets) -> int:
    return sum(count for count, _ in buckets.values())


def _unlike(ours: Buckets, theirs: Buckets) -> frozenset[int]:
    unlike = [at for at in range(256) if ours.get(at) != theirs.get(at)]
    return frozenset(unlike[:_BUCKETS_READ_MAX])


def _differences(
    source: Snapshot,
    table: SourceTable,
    target: LakeTable,
    shape: Shape,
    buckets: frozenset[int],
) -> tuple[Difference, ...]:
    if not buckets:
        return ()
    ours = _by_key(source.read(table, shape, buckets), shape)
    theirs = _by_key(within(target.rows(shape.columns), shape, buckets), shape)
    found: list[Difference] = []
    for key in sorted(ours.keys() | theirs.keys(), key=str):
        only_ours, only_theirs = ours[key] - theirs[key], theirs[key] - ours[key]
        for a, b in zip_longest(only_ours.elements(), only_theirs.elements()):
            found.append(_difference(table, shape, key, a, b))
            if len(found) == _DIFFERENCES_MAX:
                return tuple(found)
    return tuple(found)


def _by_key(rows: Iterable[Row], shape: Shape) -> defaultdict[Row, Counter[Row]]:
    result: defaultdict[Row, Counter[Row]] = defaultdict(Counter)
    positions = shape.key_positions
    for row in rows:
        result[tuple(row[position] for position in positions)][row] += 1
    return result


def _difference(
    table: SourceTable, shape: Shape, key: Row, ours: Row | None, theirs: Row | None
) -> Difference:
    floats = frozenset(column.name for column in table.columns if column.is_float)

    def named(names: tuple[str, ...], row: Row) -> Mapping[str, Text]:
        pairs = zip(names, row, strict=True)
        return {name: _readable(text) if name in floats else text for name, text in pairs}

    return Difference(
        key=named(shape.key, key),
        source=None if ours is None else named(shape.columns, ours),
        lake=None if theirs is None else named(shape.columns, theirs),
    )


def _readable(text: Text) -> Text:
    """A float, of which the bytes were compared."""
    if text is None or len(text) not in (8, 16):
        return text
    (value,) = struct.unpack(">f" if len(text) == 8 else ">d", bytes.fromhex(text))
    return repr(value)
