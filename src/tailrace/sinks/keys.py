"""Keys as numbers: rows that have the same key get the same code, whatever the key's columns are.

Codes are dense (0, 1, 2, …), so that a table indexed by code replaces sorting and hashing in
Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.model import PgType, Relation

_PRODUCT_MAX: Final = 1 << 62
_FLOATS: Final = (PgType.FLOAT4, PgType.FLOAT8)
_EXACT: Final = Context(prec=200_000, Emax=MAX_EMAX, Emin=MIN_EMIN)

Codes: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[np.int64]
Column: TypeAlias = "pa.ChunkedArray[Any]"


def steady_key(relation: Relation) -> tuple[str, ...]:
    """The key's columns in the order of the table's. A row that is known by a text of its key needs
    one order: a Relation frame that the catalog has moved on from, because a column was added for
    instance, does not say the primary key's own.
    """
    return tuple(name for name in relation.column_names if name in relation.key)


def plain_texts(texts: list[Any], kind: int) -> list[Any]:
    """One text for values of a key's column that Postgres takes for one: 1.0 and 1.00, 0 and -0."""
    if kind == PgType.NUMERIC:
        return [text and str(Decimal(text).normalize(_EXACT)) for text in texts]
    if kind == PgType.BPCHAR:
        # Blanks at the end do not count, and there are more of them when the column gets longer.
        return [text and text.rstrip(" ") for text in texts]
    return ["0" if text == "-0" else text for text in texts] if kind in _FLOATS else texts


def encode_keys(*tables: pa.Table) -> list[Codes]:
    """The codes of the rows of each table; equal keys have equal codes across all of them.

    The tables consist of the same key columns, without NULLs.
    """
    every = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    codes, count = _encode(every.column(0))
    for column in every.columns[1:]:
        more, more_count = _encode(column)
        if count * max(more_count, 1) > _PRODUCT_MAX:
            raise OverflowError("more distinct keys than a batch can have")
        codes, count = _encode(pa.chunked_array([pa.array(codes * more_count + more)]))
    borders = np.cumsum([table.num_rows for table in tables])[:-1]
    return np.split(codes, borders)


def _encode(column: Column) -> tuple[Codes, int]:
    if pa.types.is_floating(column.type):
        # Postgres takes -0 and 0 for one key; adding zero makes them one bit pattern.
        column = pa.chunked_array([pa.array(column.to_numpy() + 0.0)])
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    return indices.astype(np.int64, copy=False), len(encoded.dictionary)


def find_keys(wanted: pa.Table, among: pa.Table) -> Rows:
    """For each wanted key the row of `among` that has it, or -1; the last one if several have."""
    wanted_codes, among_codes = encode_keys(wanted, among)
    count = int(max(wanted_codes.max(initial=-1), among_codes.max(initial=-1))) + 1
    row = np.full(count, -1, dtype=np.int64)
    row[among_codes] = np.arange(len(among_codes))
    return row[wanted_codes]


def null_key_column(keys: pa.Table) -> str | None:
    """The first key column that holds a NULL."""
    return next((name for name in keys.column_names if keys.column(name).null_count), None)


def key_columns(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Only the key's columns, in the key's order."""
    return rows.select(list(key))
