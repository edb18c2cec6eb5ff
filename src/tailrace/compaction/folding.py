"""The changes of one table since its base, folded: what becomes of the base's rows.

A base is to them what a lake's table is to a batch: rows are replaced, deleted, added, and a value
that Postgres did not send is taken from the row that is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.compaction.texts import as_texts
from tailrace.decode import TableChanges, change_schema
from tailrace.errors import SchemaError
from tailrace.model import Op, Relation
from tailrace.model.change import OP, TEXT
from tailrace.sinks.events import is_op
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.keys import Mask, key_columns
from tailrace.spark.fit import fitted


@dataclass(frozen=True, slots=True)
class Folded:
    """What to do with a base. `fresh` are whole rows to add. Rows whose key is in `touched` go, all
    of them if `truncated`. `partial` are rows to add as well that lack values: `lacking` says by
    column which, and `origins` under which key the base has them.
    """

    relation: Relation
    truncated: bool
    fresh: pa.Table
    touched: pa.Table
    partial: pa.Table
    origins: pa.Table
    lacking: dict[str, Mask]


def fold_texts(relation: Relation, changes: Iterable[TableChanges]) -> Folded:
    """Fold successive changes, whose columns are texts, under the shape that the table has at last;
    raises SchemaError if they cannot be folded.
    """
    if relation.is_keyless:
        # Equal rows would become one.
        relation = replace(relation, key=())
    texts = as_texts(relation)
    schema = change_schema(texts)
    rows = pa.concat_tables([schema.empty_table(), *(fitted(each, schema) for each in changes)])
    if not relation.key:
        return _added(texts, rows)
    folded = fold(TableChanges(texts, rows))
    touched = pa.concat_tables([key_columns(folded.upserts, texts.key), folded.deletes])
    keeping = np.zeros(folded.upserts.num_rows, dtype=np.bool_)
    keeping[folded.keeping] = True
    if folded.truncated and keeping.any():
        raise SchemaError(f"a row of {relation.qualified} was updated that was never inserted")
    return _split(texts, folded, touched, keeping)


def _split(relation: Relation, folded: Fold, touched: pa.Table, keeping: Mask) -> Folded:
    mask = pa.array(keeping)
    return Folded(
        relation=relation,
        truncated=folded.truncated,
        fresh=folded.upserts.filter(pc.invert(mask)),
        touched=touched,
        partial=folded.upserts.filter(mask),
        origins=folded.origins.filter(mask),
        lacking={name: lacks[keeping] for name, lacks in folded.kept.items()},
    )


def _added(relation: Relation, rows: pa.Table) -> Folded:
    """A table without a key can only grow, or be emptied."""
    if (is_op(rows, Op.UPDATE) | is_op(rows, Op.DELETE)).any():
        raise SchemaError(f"{relation.qualified} has no key by which its changes could be folded")
    truncates = np.flatnonzero(is_op(rows, Op.TRUNCATE))
    fresh = rows.slice(int(truncates[-1]) + 1) if len(truncates) else rows
    fresh = fresh.filter(pc.equal(fresh.column(OP), pa.scalar(Op.INSERT.value)))
    nothing = fresh.slice(0, 0).select([])
    return Folded(
        relation=relation,
        truncated=bool(len(truncates)),
        fresh=fresh.select([*relation.column_names, TEXT]),
        touched=nothing,
        partial=fresh.slice(0, 0).select([*relation.column_names, TEXT]),
        origins=nothing,
        lacking={},
    )
