"""The columns that say what happened to a row, as Postgres' text: an array of names, and the old
row as JSON, both by the column.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode.arrays import nulls
from tailrace.model import Relation
from tailrace.model.change import BEFORE
from tailrace.postgres.binaries import Array
from tailrace.sinks.postgres.strings import STRING, join
from tailrace.sinks.postgres.value_texts import Leftovers, value_texts

_JSON_ESCAPES: Final = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    *((chr(code), f"\\u{code:04x}") for code in range(1, 32)),
)
_JSON_SPECIAL: Final = r'["\\\x01-\x1f]'


def names_text(lists: Array) -> Array:
    """Lists of names as `text[]`."""
    if lists.null_count == len(lists):
        return nulls(STRING, len(lists))
    names: Array = pc.list_flatten(lists).cast(STRING)
    for plain, escaped in _JSON_ESCAPES[:2]:
        names = pc.replace_substring(names, plain, escaped)
    sizes: Array = pc.list_value_length(lists).fill_null(0)
    places = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(sizes.to_numpy(), out=places[1:])
    kind: pa.DataType = pa.list_(STRING)
    buffers = [None, pa.py_buffer(places.data)]
    quoted: Any = pa.Array.from_buffers(
        kind, len(lists), buffers, children=[join(['"', names, '"'])]
    )
    joined: Any = pc.binary_join(quoted, pa.scalar(",", STRING))
    return _where(lists.is_valid(), join(["{", joined, "}"]))


def before_text(rows: pa.Table, relation: Relation, left: Leftovers) -> Array:
    """The old rows as JSON: of each the columns that the replica identity has, numbers as numbers
    where JSON has them, all else as Postgres' text.
    """
    structs = rows.column(BEFORE).combine_chunks()
    names = [column.name for column in relation.columns if column.in_identity]
    if structs.null_count == len(structs) or not names:
        return nulls(STRING, len(structs))
    members = []
    for name in names:
        # By place: a name with dots would be read as a path.
        values = pc.struct_field(structs, [structs.type.get_field_index(name)])
        texts = value_texts(values, left.get(f"{BEFORE}.{name}"), name)
        shown = _json_values(texts, values.type).fill_null("null")
        members.append(join([f"{_json_name(name)}:", shown]))
    joined = join(members, ",")
    return _where(structs.is_valid(), join(["{", joined, "}"]))


def _json_values(texts: Array, kind: pa.DataType) -> Array:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return texts
    quoted = _quoted(texts)
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return quoted
    is_number = pc.match_substring_regex(texts, r"^-?[0-9.]+([eE][+-]?[0-9]+)?$")
    numbers: Array = pc.if_else(is_number, texts, quoted)
    return numbers


def _quoted(texts: Array) -> Array:
    if pc.any(pc.match_substring_regex(texts, _JSON_SPECIAL)).as_py():
        for plain, escaped in _JSON_ESCAPES:
            texts = pc.replace_substring(texts, plain, escaped)
    return join(['"', texts, '"'])


def _json_name(name: str) -> str:
    quoted: str = _quoted(pa.array([name], STRING))[0].as_py()
    return quoted


def _where(valid: Array, texts: Array) -> Array:
    chosen: Array = pc.if_else(valid, texts, pa.scalar(None, STRING))
    return chosen
