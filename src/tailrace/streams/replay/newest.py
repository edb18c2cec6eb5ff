"""Changes of the past as what they still mean for a target that holds rows of today.

    a key that was changed again since, or emptied by a TRUNCATE or a load      nothing
    a key whose last change is none of those that are meant                     nothing
    any other                                                                   what became of it

Which ones are meant is asked of the last change alone: clocks may be set back, so a change that is
not meant may stand between two that are, or behind them.

Rows are brought to the table's shape of today. A column that came later keeps what the target has;
so does a value that Postgres did not send because it had not changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges, arrow_schema, change_schema
from tailrace.decode.arrays import nulls
from tailrace.decode.times import is_between
from tailrace.errors import SchemaError
from tailrace.model import Offset, Op, Origin, Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, ORIGIN, TEXT, UNCHANGED, XID
from tailrace.postgres.binaries import Array
from tailrace.sinks.events import Events, is_op
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.keys import Column, Mask, find_keys, key_columns
from tailrace.sinks.widening import widest
from tailrace.streams.replay.later_changes import LaterKeys

_PLACE = (COMMIT_LSN, ORDINAL, COMMIT_TS)


def newest_rows(
    changes: TableChanges,
    upto: Offset,
    later: LaterKeys,
    shape: Relation,
    between_us: tuple[int, int] | None = None,
) -> TableChanges | None:
    """What the changes of a batch that ends at `upto` still mean, in this shape; None if nothing.
    They are all that the log has of the table there; those that are meant were committed between
    these times.

    Raises SchemaError if a row cannot be brought to it.
    """
    if later.emptied_at >= upto:
        return None
    changes = _after(changes, later.emptied_at)
    folded = fold(changes)
    is_all_meant = between_us is None or is_between(changes.rows, *between_us).all()
    parts = []
    for rows, op in ((folded.upserts, Op.UPDATE), (folded.deletes, Op.DELETE)):
        stays = ~later.concern(key_columns(rows, shape.key), upto)
        if between_us is not None and not is_all_meant:
            stays &= is_between(_last_places(rows, changes), *between_us)
        if stays.any():
            made = _changes(rows, _kept(folded, op, rows, shape), op, shape, changes)
            parts.append(made.filter(pa.array(stays)))
    return TableChanges(shape, pa.concat_tables(parts)) if parts else None


def _after(changes: TableChanges, emptied_at: Offset) -> TableChanges:
    """Without what a load or a TRUNCATE has outdone."""
    lsn, ordinal = (changes.rows.column(name).to_numpy() for name in (COMMIT_LSN, ORDINAL))
    at = int(emptied_at.commit_lsn)
    is_later = (lsn > at) | ((lsn == at) & (ordinal > emptied_at.ordinal))
    if is_later.all():
        return changes
    return TableChanges(changes.relation, changes.rows.filter(pa.array(is_later)))


def _kept(folded: Fold, op: Op, rows: pa.Table, shape: Relation) -> Mapping[str, Mask]:
    """For a column the rows whose value is the target's."""
    if op is Op.DELETE:
        return {}
    later = [name for name in shape.column_names if name not in rows.column_names]
    every = {name: np.ones(rows.num_rows, dtype=np.bool_) for name in later}
    own = {name: mask for name, mask in folded.kept.items() if name in shape.column_names}
    return {**own, **every}


def _changes(
    rows: pa.Table, kept: Mapping[str, Mask], op: Op, shape: Relation, like: TableChanges
) -> pa.Table:
    schema, count = change_schema(shape), rows.num_rows
    types = {field.name: field.type for field in arrow_schema(shape)}
    given: dict[str, Array | Column] = {
        OP: pa.array([op.value] * count, pa.string()),
        ORIGIN: pa.array([Origin.REPLAY.value] * count, pa.string()),
        XID: pa.array([0] * count, pa.int64()),
        UNCHANGED: _names(kept, count, schema.field(UNCHANGED).type),
        **_places(rows, op, like),
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


def _places(rows: pa.Table, op: Op, like: TableChanges) -> dict[str, Column]:
    """Where and when it happened. Only when a row was deleted is known by any target."""
    if op is not Op.DELETE:
        last_one = pa.array(np.full(rows.num_rows, like.rows.num_rows - 1))
        return {name: like.rows.column(name).take(last_one) for name in _PLACE}
    places = _last_places(rows, like)
    return {name: places.column(name) for name in _PLACE}


def _last_places(rows: pa.Table, like: TableChanges) -> pa.Table:
    """Where and when the last change of each of these keys happened."""
    changes = like.rows.filter(pa.array(~is_op(like.rows, Op.TRUNCATE))).combine_chunks()
    events = Events.of(changes, like.relation)
    last = events.last_of_each_key()
    key = list(like.relation.key)
    at = find_keys(rows.select(key), events.keys.take(events.key[last]).select(key))
    return changes.select(list(_PLACE)).take(events.row[last][at])


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
