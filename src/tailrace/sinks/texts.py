"""The texts of a row's own values, told from those of its old tuple.

A change names in `_text` the values that their columns cannot hold, those of the old tuple as
`_before.<column>`. A row that is kept as it is has only the former. An old text is still good for
one thing: it fills a value that was not sent because it did not change.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.model.change import BEFORE, TEXT, UNCHANGED
from tailrace.sinks.keys import Rows

_OLD: Final = f"{BEFORE}."
_ENTRIES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def with_own_texts(rows: pa.Table) -> pa.Table:
    """The same changes without texts of old tuples; Python runs only for rows that have some."""
    touched = _with_old_texts(rows)
    if not len(touched):
        return rows
    texts, unchanged = rows.column(TEXT).to_pylist(), rows.column(UNCHANGED).to_pylist()
    for at in touched:
        texts[at], unchanged[at] = _own(dict(texts[at]), unchanged[at] or [])
    for name, values in ((TEXT, texts), (UNCHANGED, unchanged)):
        column = pa.array(values, type=rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def _with_old_texts(rows: pa.Table) -> Rows:
    column = rows.column(TEXT)
    if column.null_count == rows.num_rows:
        return np.empty(0, dtype=np.int64)
    found: list[Rows] = []
    first = 0
    for chunk in column.chunks:
        # A map is a list of entries, so its keys can be looked at all at once.
        lists: Any = chunk.cast(_ENTRIES)
        keys = pc.struct_field(pc.list_flatten(lists), [0])
        old = pc.starts_with(keys, _OLD).to_numpy(zero_copy_only=False)
        found.append(first + np.unique(pc.list_parent_indices(lists).to_numpy()[old]))
        first += len(chunk)
    return np.concatenate(found)


def _own(
    texts: dict[str, str], unchanged: list[str]
) -> tuple[list[tuple[str, str]] | None, list[str] | None]:
    own = {name: text for name, text in texts.items() if not name.startswith(_OLD)}
    filled = {name: texts[_OLD + name] for name in unchanged if _OLD + name in texts}
    left = [name for name in unchanged if name not in filled]
    return list({**own, **filled}.items()) or None, left or None
