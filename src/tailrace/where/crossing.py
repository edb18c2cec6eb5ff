"""Changes of a table as changes of those of its rows that fulfil a predicate.

    old row in, new row in     update            old row out, new row in    insert
    old row in, new row out    delete            old row out, new row out   nothing

The old row is known if its replica identity covers the columns that decide; with REPLICA IDENTITY
FULL it always does. Otherwise it is not: then a new row that is in comes as an update, which an
upsert takes for either, and one that is out as a delete, which does no harm if it never was in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.decode import TableChanges
from tailrace.decode.arrays import nulls
from tailrace.errors import SchemaError
from tailrace.model import Op, Relation, ReplicaIdentity
from tailrace.model.change import BEFORE, OP, TEXT, UNCHANGED
from tailrace.where.evaluate import is_true
from tailrace.where.predicate import Predicate, columns_of
from tailrace.where.rows import Array, RowValues

Mask = NDArray[np.bool_]


def filter_changes(changes: TableChanges, predicate: Predicate) -> TableChanges:
    """What happened to the rows that the predicate is true of; raises SchemaError."""
    relation, rows = changes.relation, changes.rows.combine_chunks()
    if not rows.num_rows:
        return changes
    names = _must_have(columns_of(predicate), relation)
    ops = rows.column(OP)
    op = {each: np.asarray(pc.equal(ops, pa.scalar(each.value)), dtype=np.bool_) for each in Op}
    _must_be_sent(rows, op[Op.UPDATE], names, relation)
    now = is_true(predicate, relation, RowValues.now(rows, names))
    has_before = np.asarray(rows.column(BEFORE).is_valid(), dtype=np.bool_)
    if _knows_old(relation, names):
        old = np.where(has_before, is_true(predicate, relation, RowValues.before(rows, names)), now)
        comes = op[Op.UPDATE] & now & ~old
    else:
        old, comes = np.ones_like(now), np.zeros_like(now)
    goes = op[Op.UPDATE] & old & ~now
    keep = op[Op.TRUNCATE] | (op[Op.INSERT] & now) | (op[Op.DELETE] & old) | goes
    keep |= op[Op.UPDATE] & now
    _must_be_whole(rows, comes, relation)
    if comes.any():
        rows = _as_inserts(rows, comes)
    if goes.any():
        rows = _as_deletes(rows, goes, has_before, relation)
    return TableChanges(relation, rows if keep.all() else rows.filter(pa.array(keep)))


def _must_have(names: frozenset[str], relation: Relation) -> frozenset[str]:
    missing = sorted(names - set(relation.column_names))
    if missing:
        raise SchemaError(
            f"{relation.qualified} has no column {missing[0]}, which the where names",
            hint=f"columns: {', '.join(relation.column_names)}",
        )
    return names


def _knows_old(relation: Relation, names: frozenset[str]) -> bool:
    if relation.identity is ReplicaIdentity.FULL:
        return True
    return names <= {column.name for column in relation.columns if column.in_identity}


def _must_be_sent(rows: pa.Table, updates: Mask, names: frozenset[str], relation: Relation) -> None:
    for row in np.flatnonzero(updates & _lacking(rows)).tolist():
        missing = names & set(rows.column(UNCHANGED)[row].as_py())
        if missing:
            raise _not_sent(relation, min(missing), "the where of the stream needs")


def _must_be_whole(rows: pa.Table, comes: Mask, relation: Relation) -> None:
    for row in np.flatnonzero(comes & _lacking(rows)).tolist():
        missing = rows.column(UNCHANGED)[row].as_py()
        raise _not_sent(relation, missing[0], "a row that comes into the stream needs")


def _lacking(rows: pa.Table) -> Mask:
    return np.asarray(rows.column(UNCHANGED).is_valid(), dtype=np.bool_)


def _not_sent(relation: Relation, column: str, why: str) -> SchemaError:
    return SchemaError(
        f"postgres did not send {relation.qualified}.{column} with an update, because it is large"
        f" and did not change; {why} it",
        hint="ALTER TABLE … REPLICA IDENTITY FULL, run `tailrace snapshot` for the table and reset"
        " the stream; or choose a where without that column",
    )


def _as_inserts(rows: pa.Table, which: Mask) -> pa.Table:
    mask = pa.array(which)
    rows = _set(rows, OP, pc.if_else(mask, Op.INSERT.value, rows.column(OP)))
    before = rows.column(BEFORE).combine_chunks()
    hidden = np.asarray(before.is_null(), dtype=np.bool_) | which
    rows = _set(rows, BEFORE, _struct(_fields(before), before.type, hidden))
    return _set_texts(rows, which, lambda key: () if key.startswith(f"{BEFORE}.") else (key,))


def _as_deletes(rows: pa.Table, which: Mask, has_before: Mask, relation: Relation) -> pa.Table:
    """A delete has of the old row what the replica identity gives, in its columns and before."""
    mask, with_old = pa.array(which), pa.array(has_before)
    identity = {column.name for column in relation.columns if column.in_identity}
    before = rows.column(BEFORE).combine_chunks()
    names = [before.type.field(place).name for place in range(before.type.num_fields)]
    old: list[Array] = []
    for name, field in zip(names, _fields(before), strict=True):
        own = rows.column(name).combine_chunks()
        known = own if name in identity else nulls(own.type, len(own))
        old.append(pc.if_else(with_old, field, known))
        rows = _set(rows, name, pc.if_else(mask, old[-1], own))
    fields = [
        pc.if_else(mask, gone, field) for gone, field in zip(old, _fields(before), strict=True)
    ]
    hidden = np.asarray(before.is_null(), dtype=np.bool_) & ~which
    rows = _set(rows, BEFORE, _struct(fields, before.type, hidden))
    rows = _set(rows, OP, pc.if_else(mask, Op.DELETE.value, rows.column(OP)))
    sent = rows.column(UNCHANGED)
    rows = _set(rows, UNCHANGED, pc.if_else(mask, pa.scalar(None, sent.type), sent))

    def kept(key: str) -> Sequence[str]:
        name = key.removeprefix(f"{BEFORE}.")
        is_old = key != name
        return (name, f"{BEFORE}.{name}") if is_old or name in identity else ()

    return _set_texts(rows, which, kept)


def _fields(structs: Array) -> list[Array]:
    """The fields of a column of structs, NULL where the struct is."""
    return [pc.struct_field(structs, [place]) for place in range(structs.type.num_fields)]


def _struct(fields: Sequence[Array], kind: pa.DataType, hidden: Mask) -> Array:
    inner = [kind.field(place) for place in range(kind.num_fields)]
    if not fields:
        return nulls(kind, len(hidden))
    return pa.StructArray.from_arrays(list(fields), fields=inner, mask=pa.array(hidden))


def _set(rows: pa.Table, name: str, values: Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)


def _set_texts(rows: pa.Table, which: Mask, kept: Callable[[str], Sequence[str]]) -> pa.Table:
    """The texts of these rows under the names that `kept` gives for theirs. Rare, so row by row."""
    texts = rows.column(TEXT)
    bearing = np.flatnonzero(which & np.asarray(texts.is_valid(), dtype=np.bool_)).tolist()
    if not bearing:
        return rows
    every = texts.to_pylist()
    for row in bearing:
        every[row] = [(key, text) for old, text in every[row] or () for key in kept(old)] or None
    return _set(rows, TEXT, pa.array(every, texts.type))
