"""A table written anew in the order of its key, with a batch applied on the way.

A MERGE of keys from all over a table touches every file and leaves the rows in no order; after it
even neighbouring keys lie everywhere. Where most of the table has to be written anyway, this is
quicker, and keeps the order: the range of the keys is cut where the files begin, and cut by cut the
rows are read, changed, sorted and written. It is one commit, and one cut at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from tailrace.sinks.delta.bounds import literal, quote
from tailrace.sinks.delta.bulk import Pieces
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.embedded import commit_properties
from tailrace.sinks.delta.feeding import CORES, FEEDING
from tailrace.sinks.delta.files import Files
from tailrace.sinks.delta.target import Target
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Column, Mask, find_keys

Value: TypeAlias = "pa.Scalar[Any]"

_FILES_MIN: Final = 4
_SHARE_MIN: Final = 0.5
_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`cuts` are values of the key's first column, rising: where one part ends and the next
    begins.
    """

    target: Target
    key: list[str]
    cuts: list[Value]

    @classmethod
    def of(cls, target: Target, keys: pa.Table) -> Self | None:
        """A rewrite for a batch with these keys, if that is better than a MERGE."""
        column = keys.column(0)
        files = Files.of(target, keys.column_names[0])
        if files.count < _FILES_MIN or target.partitions or not files.has_ranges:
            return None
        # As many files as that are read into memory for one part.
        if files.deepest > _DEPTH_MAX:
            return None
        if files.touched_share(column) < _SHARE_MIN:
            return None
        cuts = [pa.scalar(value, column.type) for value in files.begins()[1:]]
        if any(literal(cut, column.type) is None for cut in cuts):
            return None
        return cls(target, keys.column_names, cuts)

    def run(self, fold: Fold, commit: Commit) -> None:
        """Apply the fold, whose rows have the table's columns, in one commit."""
        pieces = Pieces(self.target.schema, self._parts(fold))
        with FEEDING, pieces.own_failure():
            write_deltalake(
                self.target.table,
                pieces.reader(),
                mode="overwrite",
                commit_properties=commit_properties(commit),
            )

    def _parts(self, fold: Fold) -> Iterator[pa.Table]:
        ranges = list(zip([None, *self.cuts], [*self.cuts, None], strict=True))
        for at in _dealt(len(ranges), CORES):
            low, high = ranges[at]
            held = self.target.read_range(self._condition(low, high))
            changed = _applied(held, _between(fold, self.key[0], low, high), self.key)
            ordered = changed.sort_by([(name, "ascending") for name in self.key])
            yield ordered.combine_chunks()

    def _condition(self, low: Value | None, high: Value | None) -> str:
        name = quote(self.key[0])
        ends = ((">=", low), ("<", high))
        parts = [f"{name} {sign} {literal(end, end.type)}" for sign, end in ends if end is not None]
        return " AND ".join(parts)


def _dealt(count: int, writers: int) -> list[int]:
    """The parts in an order that gives each writer a stretch of neighbours.

    The library deals the batches that it gets out to as many writers as there are cores, in turn,
    and each writer fills files of its own.
    """
    stretches = np.array_split(np.arange(count), writers)
    turns = range(len(stretches[0]))
    return [int(each[turn]) for turn in turns for each in stretches if turn < len(each)]


def _between(fold: Fold, name: str, low: Value | None, high: Value | None) -> Fold:
    upserts = np.flatnonzero(_inside(fold.upserts.column(name), low, high))
    deletes = np.flatnonzero(_inside(fold.deletes.column(name), low, high))
    return Fold(
        truncated=False,
        upserts=fold.upserts.take(upserts),
        deletes=fold.deletes.take(deletes),
        origins=fold.origins.take(upserts),
        kept={column: mask[upserts] for column, mask in fold.kept.items()},
    )


def _inside(column: Column, low: Value | None, high: Value | None) -> Mask:
    inside = np.ones(len(column), dtype=np.bool_)
    if low is not None:
        inside &= pc.greater_equal(column, low).to_numpy()
    if high is not None:
        inside &= pc.less(column, high).to_numpy()
    return inside


def _applied(held: pa.Table, fold: Fold, key: list[str]) -> pa.Table:
    """The rows after the fold, in no order."""
    keys = held.select(key)
    by = find_keys(keys, fold.upserts.select(key))
    stays = by < 0
    if fold.deletes.num_rows:
        stays &= find_keys(keys, fold.deletes.select(key)) < 0
    upserts = fold.upserts
    for name, mask in fold.kept.items():
        at = find_keys(upserts.select(key), keys)
        old = held.column(name).take(pa.array(at, pa.int64(), mask=at < 0))
        values = pc.if_else(pa.array(mask), old, upserts.column(name))
        upserts = upserts.set_column(
            upserts.column_names.index(name), upserts.schema.field(name), values
        )
    return pa.concat_tables([held.filter(pa.array(stays)), upserts.select(held.column_names)])
