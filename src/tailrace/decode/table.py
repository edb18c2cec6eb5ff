"""Rows of one table and one shape as an Arrow table: its typed columns, then what happened to each
row.

Invariant: nothing is lost between the tuple and the table. A value is in its column, or its column
is NULL and its exact text is in `_text` (under `column`, or `_before.column` for a value of the old
tuple), or it was not sent and its column is named in `_unchanged`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.decode.arrays import gather, nested, nulls, struct
from tailrace.decode.changes import Changes
from tailrace.decode.rows import Rows
from tailrace.decode.types import NAMES, TEXTS, TIMESTAMP_UTC
from tailrace.decode.values import convert, exact_text
from tailrace.model import Op
from tailrace.model.change import BEFORE
from tailrace.postgres.binaries import Array
from tailrace.postgres.pgoutput import Tag
from tailrace.postgres.tuples import TEXT, UNCHANGED, Cells

_OPS: Final = pa.array([str(op) for op in Op], pa.string())
_OP_OF_TAG: Final = np.zeros(256, dtype=np.int8)
_OP_OF_TAG[[Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE]] = range(4)


@dataclass(slots=True)
class _Leftovers:
    """The texts that their columns could not hold, for `_text`."""

    names: list[str] = field(default_factory=list)
    rows: list[NDArray[np.intp]] = field(default_factory=list)
    texts: list[Array] = field(default_factory=list)

    def add(self, name: str, rows: NDArray[np.intp], texts: Array) -> None:
        self.names.append(name)
        self.rows.append(rows)
        self.texts.append(exact_text(texts))

    def to_map(self, row_count: int) -> Array:
        """One map for each row that has any, in the order added; NULL for the others."""
        if not self.rows:
            return nulls(TEXTS, row_count)
        rows = np.concatenate(self.rows)
        order = np.argsort(rows, kind="stable")
        name_of = np.repeat(np.arange(len(self.names)), [len(part) for part in self.rows])
        keys = pa.array(self.names, pa.string()).take(name_of[order])
        items = pa.concat_arrays(self.texts).take(order)
        entries = struct(pa.struct([TEXTS.key_field, TEXTS.item_field]), len(rows), [keys, items])
        return nested(TEXTS, np.bincount(rows, minlength=row_count), [entries])


def build_table(
    schema: pa.Schema,
    rows: Rows,
    changes: Changes,
    places: NDArray[np.intp],
    *,
    origin: Array,
) -> pa.Table:
    """The table of `rows`, which are the changes at `places`; `schema` is their change schema,
    `origin` how each was captured.
    """
    before_type = schema.field(BEFORE).type
    fields = [before_type.field(index) for index in range(before_type.num_fields)]
    left = _Leftovers()
    everywhere = np.arange(len(places))
    own = [
        _typed(rows.data, cells, column.type, column.name, everywhere, left)
        for cells, column in zip(rows.now, fields, strict=True)
    ]
    before = _before(rows, before_type, fields, left)
    meta = [
        _OPS.take(_OP_OF_TAG[rows.tag]),
        *_place_columns(changes, places),
        origin,
        _unchanged(rows, [column.name for column in fields]),
        before,
        left.to_map(len(places)),
    ]
    return pa.Table.from_arrays(own + meta, schema=schema)


def _typed(
    data: NDArray[np.uint8],
    cells: Cells,
    target: pa.DataType,
    name: str,
    rows: NDArray[np.intp],
    left: _Leftovers,
) -> Array:
    """One typed column; texts that it cannot hold are left over, at their places in `rows`."""
    texts = gather(data, cells)
    values = convert(texts, target)
    if values.null_count > texts.null_count:
        lost = values.is_null().to_numpy(zero_copy_only=False) & (cells.kind == TEXT)
        left.add(name, rows[lost], texts.filter(pa.array(lost)))
    return values


def _before(
    rows: Rows, target: pa.DataType, fields: list[pa.Field[Any]], left: _Leftovers
) -> Array:
    """The old tuples, NULL for the rows that came without one."""
    if not len(rows.old):
        return nulls(target, len(rows.tag))
    columns = [
        _typed(rows.data, cells, column.type, f"{BEFORE}.{column.name}", rows.old, left)
        for cells, column in zip(rows.before, fields, strict=True)
    ]
    tuples = struct(target, len(rows.old), columns)
    if len(rows.old) == len(rows.tag):
        return tuples
    place = np.full(len(rows.tag), -1)
    place[rows.old] = np.arange(len(rows.old))
    index: Array = pa.array(place, mask=place < 0)
    return tuples.take(index)


def _place_columns(changes: Changes, places: NDArray[np.intp]) -> list[Array]:
    """Commit position, ordinal, commit time, xid."""
    transaction = changes.transaction[places]
    transactions = changes.transactions
    return [
        pa.array(transactions.commit_lsn[transaction]),
        pa.array(changes.ordinal[places]),
        pa.array(transactions.commit_ts_us[transaction]).cast(TIMESTAMP_UTC),
        pa.array(transactions.xid[transaction]),
    ]


def _unchanged(rows: Rows, names: list[str]) -> Array:
    """For each row the names of the columns that were not sent; NULL where all were."""
    unsent = [cells.kind == UNCHANGED for cells in rows.now]
    if not any(column.any() for column in unsent):
        return nulls(NAMES, len(rows.tag))
    mask = np.stack(unsent, axis=1) & (rows.tag != Tag.DELETE)[:, None]
    column_of = np.nonzero(mask)[1]
    values = pa.array(names, pa.string()).take(column_of)
    return nested(NAMES, mask.sum(axis=1), [values])
