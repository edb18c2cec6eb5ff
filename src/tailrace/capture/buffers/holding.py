"""Rows of a transaction in parts that wait for its end, because of triggers of the user's.

What such a trigger does to a row may be recorded before the change that it was called for, by as
many rows as the statement has. So the rows that it has changed wait, and all later ones of the
same keys; when the transaction ends, or alters the table, they are put in order together. What a
trigger was called for is never recorded after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.assembly import FrameBuffer
from tailrace.capture.buffers.ordering import ShapedRows
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag

HELD_BYTES_MAX: Final = 64 << 20
"""More than this does not wait: a trigger that changes so many rows deletes or copies them, and
does not change them twice.
"""


class MustNotWait(Exception):
    """A TRUNCATE stands between rows that wait and rows that come."""


class Holding:
    """What waits of one transaction."""

    def __init__(self) -> None:
        self._frames = FrameBuffer()
        self._keys: dict[int, NDArray[np.int64]] = {}
        self._places: list[NDArray[np.intp]] = []

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return self._frames.data_bytes > HELD_BYTES_MAX

    def hold(self, oid: int, groups: Sequence[ShapedRows]) -> list[ShapedRows]:
        """Take out the rows of a table that must wait; raises MustNotWait."""
        left = []
        for group in groups:
            waits = self._waits(oid, group)
            self._places.append(group.places[waits])
            left.append(ShapedRows(group.rows, group.at[~waits], group.places[~waits], group.shape))
        if len(self._keys.get(oid, ())) and any((g.op == Tag.TRUNCATE).any() for g in groups):
            raise MustNotWait
        return [group for group in left if len(group.at)]

    def keep(self, frames: Frames) -> NDArray[np.intp]:
        """Keep what was taken out of this run; the places of that."""
        places = np.concatenate([np.empty(0, np.intp), *self._places])
        self._places = []
        is_held = np.zeros(len(frames), dtype=np.bool_)
        is_held[places] = True
        self._frames.add(frames.select(is_held))
        return places

    def release(self) -> Frames:
        """All that waits, in the order recorded; nothing does any more."""
        self._keys, self._places = {}, []
        return self._frames.take()

    def _waits(self, oid: int, group: ShapedRows) -> NDArray[np.bool_]:
        known = self._keys.get(oid, np.empty(0, np.int64))
        is_deep = group.integers("depth") > 1
        if not is_deep.any() and not len(known):
            return is_deep
        keys = group.integers("key_hash")
        deep_keys, first = np.unique(keys[is_deep], return_index=True)
        begin = np.full(len(keys), len(keys))
        if len(deep_keys):
            at = np.minimum(np.searchsorted(deep_keys, keys), len(deep_keys) - 1)
            is_one = deep_keys[at] == keys
            begin[is_one] = np.flatnonzero(is_deep)[first][at[is_one]]
        self._keys[oid] = np.union1d(known, deep_keys)
        waits: NDArray[np.bool_] = np.isin(keys, known) | (np.arange(len(keys)) >= begin)
        return waits
