"""The lake's side: the rows of one lake table, summed up column by column in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.postgres.binaries import Array
from tailrace.verify.hashing import SEED, Hashes, hash_texts
from tailrace.verify.ranges import SLOTS, Bounds, choose_bounds, slot_of
from tailrace.verify.shape import Row, Shape
from tailrace.verify.sums import Cell, Sums
from tailrace.verify.texts import hexadecimal, texts_of

_PIECE_ROWS: Final = 32_768
_THREADS: Final = 2
_SAMPLE_ROWS: Final = 200_000


class Spread(NamedTuple):
    """So many values between two, these included."""

    low: int
    high: int
    row_count: int


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

    def spread(self, column: str) -> Sequence[Spread] | None:
        """How the values of a column of whole numbers lie, if that is known without a look."""
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
        if first.is_nullable or (self._shape.is_hexed and not first.is_integer):
            # A NULL is in no range, and texts of another encoding may have another order.
            return Bounds()
        row_count = self._rows.count()
        step = max(1, row_count // _SAMPLE_ROWS)
        spread = self._rows.spread(first.name) if first.is_integer else None
        sample = self._sampled(first.name, step) if spread is None else _filled(spread, step)
        return choose_bounds(sample, row_count, are_numbers=first.is_integer)

    def _sampled(self, name: str, step: int) -> Array:
        samples = [
            texts_of(table.take(np.arange(0, table.num_rows, step)), [name])[0]
            for table in self._rows.tables([name])
            if table.num_rows
        ]
        return pa.concat_arrays(samples).drop_null() if samples else pa.array([], pa.binary())

    def cells(self, bounds: Bounds) -> Sums:
        """Sum up the whole table by range and slot."""
        sums = Sums.zero(bounds.range_count, SLOTS)
        work = partial(self._placed_table, bounds)
        # Arrow and numpy do their work outside of Python's lock.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="tailrace-verify") as pool:
            for hashes, places in _a_few_ahead(pool, work, self._pieces()):
                sums.add_rows(places, hashes)
                self._on_rows(len(hashes))
        return sums

    def rows(self, bounds: Bounds, cells: Collection[Cell]) -> list[Row]:
        """The rows of some cells."""
        wanted = np.zeros(bounds.range_count * SLOTS, dtype=np.bool_)
        wanted[[number * SLOTS + slot for number, slot in cells]] = True
        found: list[Row] = []
        for piece in self._pieces():
            texts = texts_of(piece, self._shape.names)
            _, places = self._placed(texts, bounds)
            chosen = np.flatnonzero(wanted[places])
            if len(chosen):
                found.extend(zip(*(t.take(chosen).to_pylist() for t in texts), strict=True))
        return found

    def _pieces(self) -> Iterator[pa.Table]:
        """The rows, in pieces that are neither small nor large."""
        waiting: list[pa.Table] = []
        count = 0
        for table in self._rows.tables(self._shape.names):
            for start in range(0, table.num_rows, _PIECE_ROWS):
                waiting.append(table.slice(start, _PIECE_ROWS))
                count += waiting[-1].num_rows
                if count >= _PIECE_ROWS:
                    yield pa.concat_tables(waiting)
                    waiting, count = [], 0
        if waiting:
            yield pa.concat_tables(waiting)

    def _placed_table(self, bounds: Bounds, piece: pa.Table) -> tuple[Hashes, NDArray[np.int64]]:
        return self._placed(texts_of(piece, self._shape.names), bounds)

    def _placed(self, texts: list[Array], bounds: Bounds) -> tuple[Hashes, NDArray[np.int64]]:
        """The hash of each row, and the number of its cell."""
        hashes, key_hashes = _chain(texts, self._shape)
        ranges = bounds.range_of(texts[0])
        return hashes, ranges * SLOTS + slot_of(key_hashes)


_Placed: TypeAlias = tuple[Hashes, NDArray[np.int64]]


def _a_few_ahead(
    pool: ThreadPoolExecutor, work: Callable[[pa.Table], _Placed], pieces: Iterator[pa.Table]
) -> Iterator[_Placed]:
    """What comes of each piece, in order; few of them are in memory."""
    waiting: deque[Future[_Placed]] = deque()
    for piece in pieces:
        waiting.append(pool.submit(work, piece))
        if len(waiting) > 2 * _THREADS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _filled(spread: Sequence[Spread], step: int) -> Array:
    """As if each stretch were filled evenly."""
    numbers = [
        np.linspace(low, high, max(1, row_count // step)).astype(np.int64)
        for low, high, row_count in spread
        if row_count
    ]
    every = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    return pa.array(every).cast(pa.string()).cast(pa.binary())


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
