"""The rows of a batch of changes as JSON: as they are, as they were, and their keys.

Values that Postgres did not send are taken from the old row where that came whole. Where it did
not, `unchanged` names the columns, and what stands there is up to the envelope.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import TableChanges
from tailrace.decode.arrays import nulls
from tailrace.errors import SchemaError
from tailrace.model import Op, Relation
from tailrace.model.change import BEFORE, OP, TEXT, UNCHANGED
from tailrace.sinks.keys import Mask, steady_key
from tailrace.sinks.queue.json_columns import Array, Style, json_members, json_values

_OLD: Final = f"{BEFORE}."
UNAVAILABLE: Final = '"__debezium_unavailable_value"'

Texts = dict[str, dict[int, str]]


@dataclass(frozen=True, slots=True)
class RowsJson:
    """One JSON text for each change: `after` and `before` are objects, `key` and `old_key` are
    empty for a table without a key, `unchanged` is an array of names.
    """

    after: Array
    before: Array
    key: Array
    old_key: Array
    unchanged: Array
    has_before: Mask


def rows_json(changes: TableChanges, style: Style) -> RowsJson:
    """Render every change; raises SchemaError if the key is not among the columns."""
    relation, rows = changes.relation, changes.rows
    _require_key_columns(relation)
    names = list(relation.column_names)
    texts, missing = _texts(rows), _unchanged(rows)
    old = flat(rows.column(BEFORE))
    has_before = np.asarray(old.is_valid(), dtype=np.bool_)
    is_delete = np.asarray(pc.equal(flat(rows.column(OP)), pa.scalar(str(Op.DELETE))))
    new_json: dict[str, Array] = {}
    old_json: dict[str, Array] = {}
    for at, name in enumerate(names):
        values, before = flat(rows.column(name)), pc.struct_field(old, [at])
        own, former = texts[name], texts[_OLD + name]
        deleted = {row: text for row, text in own.items() if is_delete[row]}
        if name in missing:
            values, own = _filled(values, before, own, former, missing[name])
        new_json[name] = json_values(_as_key(values, name, relation), style, own)
        old_json[name] = json_values(_as_key(before, name, relation), style, {**deleted, **former})
    key = steady_key(relation)
    return RowsJson(
        after=json_members(names, [_sent(new_json[n], missing.get(n), style) for n in names]),
        before=json_members(names, [old_json[name] for name in names]),
        key=_keys(key, new_json, rows.num_rows),
        old_key=_keys(key, old_json, rows.num_rows),
        unchanged=_names_json(missing, rows.num_rows),
        has_before=has_before,
    )


def flat(column: pa.ChunkedArray[Any]) -> Array:
    """A column in one piece."""
    return pa.concat_arrays([nulls(column.type, 0), *column.chunks])


def _require_key_columns(relation: Relation) -> None:
    if not set(relation.column_names).issuperset(relation.key):
        raise SchemaError(
            f"the key of {relation.qualified} is not among the columns of the stream",
            hint=f"add {', '.join(relation.key)} to the columns of the stream",
        )


def _as_key(values: Array, name: str, relation: Relation) -> Array:
    """Postgres takes -0 and 0 for one key; adding zero makes them one text."""
    if name in relation.key and pa.types.is_floating(values.type):
        zeros = values.to_numpy(zero_copy_only=False) + np.float32(0.0)
        return pa.array(zeros, values.type, mask=np.asarray(values.is_null()))
    return values


def _keys(key: Sequence[str], columns: dict[str, Array], count: int) -> Array:
    if not key:
        return pa.array([""] * count, pa.string())
    return json_members(list(key), [columns[name] for name in key])


def _texts(rows: pa.Table) -> Texts:
    """By column, `_before.` and column, and row: what the columns cannot hold."""
    found: Texts = defaultdict(dict)
    column = rows.column(TEXT)
    if column.null_count == rows.num_rows:
        return found
    texts = flat(column)
    for row in np.flatnonzero(np.asarray(texts.is_valid())):
        for name, text in texts[int(row)].as_py():
            found[name][int(row)] = text
    return found


def _unchanged(rows: pa.Table) -> dict[str, Mask]:
    column = rows.column(UNCHANGED)
    if column.null_count == rows.num_rows:
        return {}
    lists = flat(column)
    names = pc.list_flatten(lists).dictionary_encode()
    parents, codes = pc.list_parent_indices(lists).to_numpy(), names.indices.to_numpy()
    found: dict[str, Mask] = {}
    for code, name in enumerate(names.dictionary.to_pylist()):
        found[str(name)] = np.zeros(rows.num_rows, dtype=np.bool_)
        found[str(name)][parents[codes == code]] = True
    return found


def _filled(
    values: Array, before: Array, own: dict[int, str], former: dict[int, str], missing: Mask
) -> tuple[Array, dict[int, str]]:
    """The column with what the old row has of it; `missing` keeps only what is nowhere.

    NULL is never sent as "unchanged", so a NULL in the old row only says that it is not there.
    """
    texts = {row: text for row, text in former.items() if missing[row]}
    known = missing & np.asarray(before.is_valid())
    filled: Array = pc.if_else(pa.array(known), before, values)
    missing &= ~known
    missing[list(texts)] = False
    return filled, {**own, **texts}


def _sent(column: Array, missing: Mask | None, style: Style) -> Array:
    if missing is None or not missing.any():
        return column
    stands = UNAVAILABLE if style is Style.DEBEZIUM else None
    replaced: Array = pc.if_else(pa.array(missing), pa.scalar(stands, pa.string()), column)
    return replaced


def _names_json(missing: dict[str, Mask], count: int) -> Array:
    names: list[list[str]] = [[] for _ in range(count)]
    for name, mask in missing.items():
        for row in np.flatnonzero(mask):
            names[row].append(name)
    if not any(names):
        return pa.array(["[]"] * count, pa.string())
    return pa.array([json.dumps(each, ensure_ascii=False) for each in names], pa.string())
