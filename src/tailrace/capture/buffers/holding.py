"""Rows of a transaction in parts that wait for its end, because of triggers of the user's.

What such a trigger does to a row may be recorded before the change that it was called for, by as
many rows as the statement has. So the rows that it has changed wait, and all later ones of the
same keys; when the transaction ends, or truncates or alters the table, they are put in order
together. What a trigger was called for is never recorded after that.

A row that changes its key stands between two keys: if it waits for the one, whatever comes later of
the other waits as well. Nothing that was recorded before it need wait for that: among themselves,
the rows that no trigger has changed are recorded in the order in which they were changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.capture.assembly import FrameBuffer
from tailrace.capture.buffers.layout import keys_of
from tailrace.capture.buffers.ordering import ShapedRows
from tailrace.capture.buffers.touched_keys import TouchedKeys, read_touched
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag

HELD_BYTES_MAX: Final = 64 << 20
"""More than this does not wait. A trigger that changes so many rows nearly always deletes or copies
them, and changes none twice; if it does, the order of that row cannot be told any more.
"""


@dataclass(slots=True)
class _Waiting:
    """What waits of one table: its frames, the keys that they touch, and the columns those are."""

    frames: FrameBuffer = field(default_factory=FrameBuffer)
    keys: TouchedKeys = field(default_factory=TouchedKeys.none)
    columns: tuple[str, ...] = ()

    def add(self, groups: Sequence[ShapedRows]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The places of all these rows, and which of them must wait; their keys do from now on."""
        places = np.concatenate([group.places for group in groups])
        recorded = np.argsort(places, kind="stable")
        places = places[recorded]
        self.columns = _key_columns(max(groups, key=lambda group: int(group.places[-1])))
        may_wait = places > _barrier(groups, self.columns)
        is_deep = np.concatenate([group.integers("depth") > 1 for group in groups])[recorded]
        is_deep &= may_wait
        if not self.columns or not (is_deep.any() or len(self.keys)):
            return places, np.zeros(len(places), dtype=np.bool_)
        waits, self.keys = read_touched(groups, recorded).waiting(is_deep, self.keys)
        return places, waits & may_wait


class Holding:
    """What waits of one transaction, by table."""

    def __init__(self) -> None:
        self._tables: dict[int, _Waiting] = {}
        self._places: dict[int, NDArray[np.intp]] = {}
        # By table: the keys of rows that could not wait until the end.
        self._gone: dict[int, TouchedKeys] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return sum(each.frames.data_bytes for each in self._tables.values()) > HELD_BYTES_MAX

    def ended_by(self, tables: Mapping[int, Sequence[ShapedRows]]) -> list[int]:
        """The tables of which rows wait that must go before some of these: a table is truncated, or
        gets other keys, only when no trigger has yet to be called for it.
        """
        return [
            oid
            for oid, groups in tables.items()
            if oid in self._tables and _barrier(groups, self._tables[oid].columns) >= 0
        ]

    def hold(self, oid: int, groups: Sequence[ShapedRows]) -> list[ShapedRows]:
        """Take out the rows of a table that must wait; what waits already, and `ended_by` tells to
        go first, has been released.
        """
        waiting = self._tables.get(oid, _Waiting())
        places, waits = waiting.add(groups)
        if not waits.any():
            return list(groups)
        self._tables[oid], self._places[oid] = waiting, places[waits]
        left = []
        for group in groups:
            goes = ~np.isin(group.places, self._places[oid])
            left.append(ShapedRows(group.rows, group.at[goes], group.places[goes], group.shape))
        return [group for group in left if len(group.at)]

    def keep(self, frames: Frames) -> NDArray[np.intp]:
        """Keep what was taken out of this run; the places of that."""
        for oid, places in self._places.items():
            is_held = np.zeros(len(frames), dtype=np.bool_)
            is_held[places] = True
            self._tables[oid].frames.add(frames.select(is_held))
        places = np.concatenate([np.empty(0, np.intp), *self._places.values()])
        self._places = {}
        return places

    def make_room(self) -> Frames:
        """All that waits, though the transaction goes on; the keys of that are remembered."""
        for oid, waiting in self._tables.items():
            self._gone[oid] = waiting.keys.joined(self._gone.get(oid, TouchedKeys.none()))
        return self._take(list(self._tables))

    def is_torn(self, oid: int, groups: Sequence[ShapedRows]) -> bool:
        """Whether one of these rows may belong before one that had to go; said once of a table."""
        gone = self._gone.get(oid)
        if gone is None:
            return False
        recorded = np.argsort(np.concatenate([group.places for group in groups]), kind="stable")
        is_torn = read_touched(groups, recorded).touch(gone)
        if is_torn:
            del self._gone[oid]
        return is_torn

    def release(self, oids: Iterable[int] | None = None) -> Frames:
        """All that waits of these tables, or of all, each in the order recorded; nothing of them
        does any more.
        """
        if oids is None:
            self._gone = {}
            return self._take(list(self._tables))
        return self._take([oid for oid in oids if oid in self._tables])

    def _take(self, oids: Sequence[int]) -> Frames:
        return Frames.concat([self._tables.pop(oid).frames.take() for oid in oids])


def _key_columns(group: ShapedRows) -> tuple[str, ...]:
    return tuple(group.shape.relation.column_names[at] for at in keys_of(group.shape))


def _barrier(groups: Sequence[ShapedRows], columns: tuple[str, ...]) -> int:
    """The last place at which the table is truncated, or has other keys than these; -1 if it never
    does: nothing waits from before until after it.
    """
    places = [-1]
    for group in groups:
        ends = group.places
        if _key_columns(group) == columns:
            ends = group.places[group.op == Tag.TRUNCATE]
        places += ends[-1:].tolist()
    return max(places)
