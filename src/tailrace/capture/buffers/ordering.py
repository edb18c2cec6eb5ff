"""Puts the buffered rows of one table in the order in which its rows were changed.

Nearly always that is the order in which they were recorded, and this is found by comparing whole
columns. Only a transaction in which it is not is looked at row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.capture.buffers.buffered import BufferedRows, joined, key_changed
from tailrace.capture.buffers.chains import Images, is_continued, neighbours, true_order
from tailrace.capture.buffers.layout import keys_of
from tailrace.control.shapes import BufferShape
from tailrace.postgres.binaries import Array
from tailrace.postgres.pgoutput import Tag
from tailrace.postgres.tuples import TEXT

ABSENT: Final = b""
"""The key, or the image, of a row that is not there."""


@dataclass(frozen=True, slots=True)
class ShapedRows:
    """Rows `at` of a buffer, all under one shape, and the place of each among the frames."""

    rows: BufferedRows
    at: NDArray[np.intp]
    places: NDArray[np.intp]
    shape: BufferShape

    def integers(self, column: str) -> NDArray[np.int64]:
        """One of the buffer's own columns."""
        return self.rows.integers(column)[self.at]

    @property
    def op(self) -> NDArray[np.uint8]:
        """The letter of each row."""
        return self.rows.op[self.at]

    @property
    def has_hash(self) -> NDArray[np.bool_]:
        """For each row whether it came with a hash of its key."""
        has_hash: NDArray[np.bool_] = self.rows.own["key_hash"].kind[self.at] == TEXT
        return has_hash

    @property
    def lacks_hash(self) -> bool:
        """Whether some row came without one; those of TRUNCATE never have one."""
        return bool((~self.has_hash & (self.op != Tag.TRUNCATE)).any())


def moves(groups: Sequence[ShapedRows]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of one table's rows those that must move: where they are, and where they belong."""
    nowhere = np.empty(0, np.intp)
    if not all(keys_of(group.shape) for group in groups):
        return nowhere, nowhere
    places = np.concatenate([group.places for group in groups])
    recorded = np.argsort(places, kind="stable")
    places = places[recorded]
    transaction = _transactions(groups, recorded)
    pairs = neighbours(transaction, _key_numbers(groups, recorded))
    moved = _moved_keys(groups, recorded, transaction)
    if not len(pairs[0]) and not len(moved):
        return nowhere, nowhere
    images = _images(groups, recorded)
    broken = transaction[pairs[1][~is_continued(images, pairs)]]
    sources, targets = [nowhere], [nowhere]
    for disturbed in np.union1d(broken, moved).tolist():
        rows = np.flatnonzero(transaction == disturbed)
        sources.append(places[true_order(images, rows)])
        targets.append(places[rows])
    return np.concatenate(sources), np.concatenate(targets)


def _transactions(groups: Sequence[ShapedRows], recorded: NDArray[np.intp]) -> NDArray[np.int64]:
    """A number for each row: equal for rows of one transaction with no TRUNCATE between them."""
    xid = np.concatenate([group.integers("xid") for group in groups])[recorded]
    op = np.concatenate([group.op for group in groups])[recorded]
    is_truncate = op == Tag.TRUNCATE
    if not is_truncate.any():
        return xid
    after = np.cumsum(is_truncate)
    both = np.stack([xid, after + np.concatenate([[0], after[:-1]])], axis=1)
    numbers: NDArray[np.int64] = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def _key_numbers(groups: Sequence[ShapedRows], recorded: NDArray[np.intp]) -> NDArray[np.int64]:
    """A number for each row, equal for equal keys: the hash that came with it, if all have one."""
    if not any(group.lacks_hash for group in groups):
        return np.concatenate([group.integers("key_hash") for group in groups])[recorded]
    images = _images(groups, recorded)
    has_new = pc.not_equal(images.new_key, pa.scalar(ABSENT, pa.binary()))
    keys: Array = pc.if_else(has_new, images.new_key, images.old_key)
    numbers: NDArray[np.int64] = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def _moved_keys(
    groups: Sequence[ShapedRows], recorded: NDArray[np.intp], transaction: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Transactions in which a user's trigger has had a hand and a row has changed its key: such a
    row is found under one of its two keys only.
    """
    is_deep = np.concatenate([group.integers("depth") > 1 for group in groups])[recorded]
    if not is_deep.any():
        return np.empty(0, np.int64)
    changes_key = []
    for group in groups:
        is_update = group.op == Tag.UPDATE
        changed = np.zeros(len(group.at), dtype=np.bool_)
        at, keys = group.at[is_update], keys_of(group.shape)
        changed[is_update] = key_changed(group.rows, at, group.shape, keys)
        changes_key.append(changed)
    changed = np.concatenate(changes_key)[recorded]
    return np.intersect1d(transaction[changed], transaction[is_deep])


def _images(groups: Sequence[ShapedRows], recorded: NDArray[np.intp]) -> Images:
    rows = [_before_and_after(group, range(len(group.shape.slots))) for group in groups]
    old, new = (pa.concat_arrays(each).take(recorded) for each in zip(*rows, strict=True))
    depth = np.concatenate([group.integers("depth") for group in groups])[recorded]
    return Images(depth, old, new, *keys_before_and_after(groups, recorded))


def keys_before_and_after(
    groups: Sequence[ShapedRows], recorded: NDArray[np.intp]
) -> tuple[Array, Array]:
    """What identified each row before its change, and what does after it."""
    keys = [_before_and_after(group, keys_of(group.shape)) for group in groups]
    old, new = (pa.concat_arrays(each).take(recorded) for each in zip(*keys, strict=True))
    return old, new


def _before_and_after(group: ShapedRows, places: Sequence[int]) -> tuple[Array, Array]:
    """These columns of the table in each old and each new row."""
    (now, before), op = group.rows.layout.columns(group.shape), group.op
    has_old = (op == Tag.UPDATE) | (op == Tag.DELETE)
    has_new = (op == Tag.UPDATE) | (op == Tag.INSERT)
    return (
        _whole(group, [before[place] for place in places], has_old),
        _whole(group, [now[place] for place in places], has_new),
    )


def _whole(group: ShapedRows, columns: Sequence[int], is_there: NDArray[np.bool_]) -> Array:
    values = joined(len(group.at), *group.rows.tuples(columns, group.at))
    whole: Array = pc.if_else(pa.array(is_there), values, pa.scalar(ABSENT, pa.binary()))
    return whole
