r"""Arrow columns as Postgres' text of their values, by the column.

Every value goes through the input function of its type at the target, so types need no code here
beyond what Arrow holds as something else than text. A value that its Arrow type could not hold (NaN
in a numeric, infinity in a date) is in `_text`, and takes its place in the column again.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode.arrays import nulls
from tailrace.errors import SinkError
from tailrace.model.change import TEXT
from tailrace.postgres.binaries import Array
from tailrace.sinks.keys import Column, Rows
from tailrace.sinks.postgres.strings import STRING, join, joined_bytes, offsets_of

_ENTRIES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

Leftovers = Mapping[str, tuple[Rows, Array]]
"""By the column's name, the rows whose value is in `_text`, and their texts."""


def leftovers(rows: pa.Table) -> Leftovers:
    """What `_text` has for these rows."""
    if TEXT not in rows.column_names or rows.column(TEXT).null_count == rows.num_rows:
        return {}
    column = rows.column(TEXT)
    # A map is a list of entries, so they can be looked at all at once.
    lists: Array = pa.concat_arrays([chunk.cast(_ENTRIES) for chunk in column.chunks])
    entries, parents = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
    names, texts = (pc.struct_field(entries, [place]) for place in (0, 1))
    found: dict[str, tuple[Rows, Array]] = {}
    for name in pc.unique(names).to_pylist():
        mask = pc.equal(names, pa.scalar(name))
        found[name] = (parents[mask.to_numpy(zero_copy_only=False)], texts.filter(mask))
    return found


def texts_of(rows: pa.Table, names: Sequence[str]) -> list[Array]:
    """These columns as texts."""
    left = leftovers(rows)
    return [value_texts(_whole(rows.column(name)), left.get(name), name) for name in names]


def value_texts(values: Array, left: tuple[Rows, Array] | None, name: str) -> Array:
    """The text of each value, NULL for NULL. Raises SinkError for a text of unknown letters."""
    texts = _texts(values)
    if left is None:
        return texts
    if pa.types.is_string(values.type):
        raise SinkError(
            f"a value in column {name} is not valid UTF-8, which the target cannot hold",
            hint="correct the value in the source, or leave the column out of the stream",
        )
    at, exact = left
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[at] = True
    # In the order of the rows, as the replacement asks for.
    ordered = exact.take(np.argsort(at)).cast(STRING)
    replaced: Array = pc.replace_with_mask(texts, pa.array(mask), ordered)
    return replaced


def _whole(column: Column) -> Array:
    chunks: list[Array] = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays([nulls(column.type, 0), *chunks])


def _texts(values: Array) -> Array:
    if pa.types.is_binary(values.type):
        return _hex(values)
    if isinstance(values.type, pa.TimestampType) and values.type.tz:
        # It is in UTC. Arrow takes twenty times as long for a text with a zone.
        return join([values.view(pa.timestamp("us")).cast(STRING), "+00"])
    texts: Array = values.cast(STRING)
    return texts


def _hex(values: Array) -> Array:
    """As Postgres writes a bytea: two digits for each byte behind a mark."""
    wide: Array = values.cast(pa.large_binary())
    places = 2 * (offsets_of(wide) - offsets_of(wide)[0])
    digits = pa.py_buffer(hexlify(joined_bytes(wide)))
    plain = pa.Array.from_buffers(STRING, len(wide), [None, pa.py_buffer(places.data), digits])
    texts: Array = pc.if_else(values.is_valid(), join(["\\x", plain]), pa.scalar(None, STRING))
    return texts
