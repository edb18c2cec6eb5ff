"""Changes of the past as what they still mean for a target that holds rows of today.

    a key that was changed again since, or emptied by a TRUNCATE or a load      nothing
    any other                                                                   what became of it

Rows are brought to the table's shape of today. A column that came later keeps what the target has;
so does a value that Postgres did not send because it had not changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges, arrow_schema, change_schema
from tailrace.decode.arrays import nulls
from tailrace.errors import SchemaError
from tailrace.model import Offset, Op, Origin, Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, ORIGIN, TEXT, UNCHANGED, XID
from tailrace.postgres.binaries import Array
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.keys import Column, Mask, key_columns
from tailrace.sinks.widening import widest
from tailrace.streams.replay.last_changes import LastChanges


def newest_rows(
    changes: TableChanges, upto: Offset, last: LastChanges, shape: Relation
) -> TableChanges | None:
    """What the changes of a batch that ends at `upto` still mean, in this shape; None if nothing.

    Raises SchemaError if a row cannot be brought to it.
    """
    if last.emptied_at >= upto:
        return None
    folded = fold(changes)
    key = list(shape.key)
    parts = []
    for rows, op in ((folded.upserts, Op.UPDATE), (folded.deletes, Op.DELETE)):
        if not rows.num_rows:
            continue
        places = last.places(key_columns(rows, key), upto)
        stays = places.column(COMMIT_LSN).is_valid().to_numpy()
        if stays.any():
            made = _changes(rows, places, _kept(folded, op, rows, shape), op, shape, changes)
            parts.append(made.filter(pa.array(stays)))
    return TableChanges(shape, pa.concat_tables(parts)) if parts else None


def _kept(folded: Fold, op: Op, rows: pa.Table, shape: Relation) -> Mapping[str, Mask]:
    """For a column the rows whose value is the target's."""
    if op is Op.DELETE:
        return {}
    later = [name for name in shape.column_names if name not in rows.column_names]
    every = {name: np.ones(rows.num_rows, dtype=np.bool_) for name in later}
    own = {name: mask for name, mask in folded.kept.items() if name in shape.column_names}
    return {**own, **every}


def _changes(
    rows: pa.Table,
    places: pa.Table,
    kept: Mapping[str, Mask],
    op: Op,
    shape: Relation,
    like: TableChanges,
) -> pa.Table:
    schema, count = change_schema(shape), rows.num_rows
    types = {field.name: field.type for field in arrow_schema(shape)}
    given: dict[str, Array | Column] = {
        OP: pa.array([op.value] * count, pa.string()),
        ORIGIN: pa.array([Origin.REPLAY.value] * count, pa.string()),
        XID: pa.array([0] * count, pa.int64()),
        UNCHANGED: _names(kept, count, schema.field(UNCHANGED).type),
        **{name: places.column(name) for name in (COMMIT_LSN, ORDINAL, COMMIT_TS)},
    }
    for name in rows.column_names:
        if name in types:
            given[name] = _typed(rows.column(name), types[name], name, like.relation)
    if TEXT in rows.column_names:
        given[TEXT] = rows.column(TEXT)
    columns = [
        given[field.name] if field.name in given else nulls(field.type, count) for field in schema
    ]
    return pa.table(columns, schema=schema)


def _typed(values: Column, kind: pa.DataType, name: str, relation: Relation) -> Column:
    if values.type == kind:
        return values
    if widest(values.type, kind) != kind:
        raise SchemaError(
            f"{relation.qualified}.{name} was {values.type} then and is {kind} now",
            hint="replay only what came after that; or to another place, with --to-sink",
        )
    return values.cast(kind)


def _names(kept: Mapping[str, Mask], count: int, kind: pa.DataType) -> Array:
    """The names of the columns that each row keeps; NULL for a row that keeps none."""
    if not kept:
        return nulls(kind, count)
    names = [[name for name, mask in kept.items() if mask[row]] or None for row in range(count)]
    return pa.array(names, kind)
