"""Values that only the target has: fetched from it where it cannot keep them by itself.

A target can keep a value in place if its row stays under the same key. If the key changed, the
value stands in the old key's row and must be read before that row goes. A row that the target
does not have at all is a target that is not what the stream left behind: an error, never a NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tailrace.errors import TargetLost
from tailrace.model import Relation
from tailrace.model.change import TEXT
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Column, Mask, Rows, encode_keys, find_keys, key_columns

Reader = Callable[[Sequence[str], pa.Table], pa.Table]
"""`read(columns, keys)`: these columns of the target's rows that have one of these keys, in any
order.
"""


def settle(fold: Fold, relation: Relation, read: Reader, *, in_place: bool) -> Fold:
    """The fold with fewer values kept: none, or, with `in_place`, only those the target can keep
    itself.
    """
    keeping = fold.keeping
    if not len(keeping):
        return fold
    key = list(relation.key)
    origins = fold.origins.take(keeping)
    held = read([*key, TEXT], origins)
    at = find_keys(origins, held.select(key))
    if fold.truncated or (at < 0).any():
        raise TargetLost(
            f"the target of {relation.qualified} lacks a row that the source has updated",
            hint="the target was changed by something else, or the stream began without a base;"
            f" `tailrace snapshot {relation.qualified}` delivers the table anew",
        )
    fetched = keeping
    if in_place:
        own, old = encode_keys(key_columns(fold.upserts, key).take(keeping), origins)
        # Where the row has texts, those of the kept columns have to be told from the others.
        fetched = keeping[(own != old) | held.column(TEXT).take(at).is_valid().to_numpy()]
    return _fetch(fold, key, read, fetched) if len(fetched) else fold


def _fetch(fold: Fold, key: list[str], read: Reader, fetched: Rows) -> Fold:
    origins = fold.origins.take(fetched)
    held = read([*key, *fold.kept, TEXT], origins)
    at = find_keys(origins, held.select(key))
    upserts = fold.upserts
    kept: dict[str, Mask] = {}
    for name, mask in fold.kept.items():
        wanted = mask[fetched]
        upserts = _replace(upserts, name, fetched[wanted], held.column(name), at[wanted])
        rest = mask.copy()
        rest[fetched] = False
        if rest.any():
            kept[name] = rest
    texts = held.column(TEXT).take(at)
    upserts = _add_texts(upserts, texts, fetched, fold.kept)
    return replace(fold, upserts=upserts, kept=kept)


def _replace(table: pa.Table, name: str, rows: Rows, values: Column, at: Rows) -> pa.Table:
    """`table` with the values at `at` in place of those in `rows`."""
    source = np.arange(table.num_rows)
    source[rows] = table.num_rows + at
    both = pa.chunked_array([*table.column(name).chunks, *values.chunks], type=values.type)
    return table.set_column(
        table.column_names.index(name), table.schema.field(name), both.take(source)
    )


def _add_texts(
    upserts: pa.Table, texts: Column, fetched: Rows, kept: Mapping[str, Mask]
) -> pa.Table:
    """The upserts' texts and, for the fetched values, the target's."""
    bearing = np.flatnonzero(texts.is_valid().to_numpy())
    if not len(bearing):
        return upserts
    merged = upserts.column(TEXT).to_pylist()
    for index in bearing:
        row = int(fetched[index])
        names = {name for name, mask in kept.items() if mask[row]}
        given = {name: text for name, text in texts[int(index)].as_py() if name in names}
        merged[row] = list({**given, **dict(merged[row] or ())}.items()) or None
    column = pa.array(merged, type=texts.type)
    return upserts.set_column(upserts.column_names.index(TEXT), upserts.schema.field(TEXT), column)
