"""The lake's side: the rows of one lake table, summed up column by column in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.decode.arrays import Array
from tailrace.verify.hashing import SEED, Hashes, hash_texts
from tailrace.verify.ranges import SLOTS, Bounds, choose_bounds, slot_of
from tailrace.verify.shape import Row, Shape
from tailrace.verify.sums import Cell, Sums
from tailrace.verify.texts import hexadecimal, texts_of

_CHUNK_ROWS: Final = 65_536
_SAMPLE_ROWS: Final = 200_000


class LakeRows(Protocol):
    """The rows of a lake table as of one position. All of it may raise SinkError."""

    @property
    def columns(self) -> frozenset[str]:
        """The names of its columns."""
        ...

    def count(self) -> int:
        """About how many rows there are."""
        ...

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of all rows, and `_text` if there is one, in tables of any size."""
        ...


class LakeSide:
    """One table; `on_rows` is told how many more rows have been read."""

    def __init__(
        self, rows: LakeRows, shape: Shape, *, on_rows: Callable[[int], None] = lambda _: None
    ) -> None:
        self._rows = rows
        self._shape = shape
        self._on_rows = on_rows

    def bounds(self) -> Bounds:
        """Bounds that split these rows about evenly, from a sample of them."""
        first = self._shape.columns[0]
        row_count = self._rows.count()
        step = max(1, row_count // _SAMPLE_ROWS)
        samples = [
            texts_of(table.take(np.arange(0, table.num_rows, step)), [first.name])[0]
            for table in self._rows.tables([first.name])
            if table.num_rows
        ]
        sample = pa.concat_arrays(samples) if samples else pa.array([], pa.binary())
        return choose_bounds(sample.drop_null(), row_count, are_numbers=first.is_integer)

    def cells(self, bounds: Bounds) -> Sums:
        """Sum up the whole table by range and slot."""
        sums = Sums.zero(bounds.range_count, SLOTS)
        for texts in self._chunks():
            hashes, places = self._placed(texts, bounds)
            sums.add_rows(places, hashes)
            self._on_rows(len(hashes))
        return sums

    def rows(self, bounds: Bounds, cells: Collection[Cell]) -> list[Row]:
        """The rows of some cells."""
        wanted = np.zeros(bounds.range_count * SLOTS, dtype=np.bool_)
        wanted[[number * SLOTS + slot for number, slot in cells]] = True
        found: list[Row] = []
        for texts in self._chunks():
            _, places = self._placed(texts, bounds)
            chosen = np.flatnonzero(wanted[places])
            if len(chosen):
                found.extend(zip(*(t.take(chosen).to_pylist() for t in texts), strict=True))
        return found

    def _chunks(self) -> Iterator[list[Array]]:
        names = self._shape.names
        for table in self._rows.tables(names):
            for start in range(0, table.num_rows, _CHUNK_ROWS):
                yield texts_of(table.slice(start, _CHUNK_ROWS), names)

    def _placed(self, texts: list[Array], bounds: Bounds) -> tuple[Hashes, NDArray[np.int64]]:
        """The hash of each row, and the number of its cell."""
        hashes, key_hashes = _chain(texts, self._shape)
        ranges = bounds.range_of(texts[0])
        return hashes, ranges * SLOTS + slot_of(key_hashes)


def _chain(texts: Sequence[Array], shape: Shape) -> tuple[Hashes, Hashes]:
    """The hash of each row, and of its key."""
    hashes = np.full(len(texts[0]), SEED, dtype=np.uint64)
    key_hashes = hashes
    for number, values in enumerate(texts, 1):
        if values.null_count:
            hashes = hashes ^ values.is_null().to_numpy(zero_copy_only=False).astype(np.uint64)
            values = values.fill_null(b"")
        if shape.is_hexed:
            values = hexadecimal(values)
        hashes = hash_texts(values, hashes)
        if number == shape.key_count:
            key_hashes = hashes
    return hashes, key_hashes
