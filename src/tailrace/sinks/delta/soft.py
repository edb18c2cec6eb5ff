"""A lake table that holds the source's rows, and those that were deleted, marked by the time of
their deletion.

    _deleted_at   NULL while the row is there; then the commit time of what took it away

A deleted row keeps its last values. A row inserted again under the same key takes its place. A load
begins the table anew, without the deleted rows of the time before.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Relation
from tailrace.model.change import COMMIT_TS
from tailrace.sinks.columns import DELETED_AT, DELETION, with_columns
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bounds import quote, timestamp
from tailrace.sinks.delta.bulk import Pieces, replace_all
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.merge import Merge, Update, assignments, merge_source, same_key
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.target import Target
from tailrace.sinks.events import with_keys
from tailrace.sinks.keys import find_keys
from tailrace.sinks.settle import settle
from tailrace.sinks.shape import renewed, row_schema
from tailrace.sinks.sink import Load
from tailrace.sinks.versions import Versions, versions

_THERE: Final = f"{quote(DELETED_AT)} IS NULL"


class SoftDeleteForm:
    """The source's columns, `_text` and `_deleted_at`."""

    replaces_shape = True

    def __init__(self, engine: Engine, options: DeltaOptions) -> None:
        self._engine = engine
        self._options = options

    def schema(self, relation: Relation) -> pa.Schema:
        """As an upsert table, and the mark."""
        return row_schema(relation, extra=(DELETION,))

    def write(self, changes: TableChanges, target: Target, commit: Commit) -> None:
        """Merge the last version of each key, and mark what ended."""
        relation, schema = changes.relation, target.schema
        found = versions(changes)
        # What a deleted row has is old: one that a where takes in again may have another by now.
        read = partial(target.read, where=_THERE)
        rows = settle(found.rows, relation, read, in_place=False).upserts
        last = found.is_last
        ends = found.place(found.closed[last]).select([COMMIT_TS])
        upserts = conform(with_columns(rows.filter(pa.array(last)), (DELETION,), ends), schema)
        if target.is_empty:
            self._engine.append(target, upserts, commit)
        else:
            self._engine.merge(target, _merge(found, upserts, schema, relation), commit)

    def load(self, load: Load, rows: Iterable[pa.Table], target: Target, commit: Commit) -> None:
        """Begin the table anew."""
        shape = renewed(self.schema(load.relation), target.next_version)
        partition_by = self._options.partitions(load.relation)
        pieces = Pieces(shape, with_keys(rows, load.relation))
        replace_all(target, pieces, commit, partition_by=partition_by)


def _merge(found: Versions, upserts: pa.Table, schema: pa.Schema, relation: Relation) -> Merge:
    key, columns = list(relation.key), schema.names
    marks = with_columns(
        found.closings, (DELETION,), found.place(found.closings_at).select([COMMIT_TS])
    )
    marks = conform(marks, pa.schema([schema.field(name) for name in [*key, DELETED_AT]]))
    # What has a version in the batch is replaced by it as a whole.
    only_ended = find_keys(marks.select(key), upserts.select(key)) < 0
    marks = marks.filter(pa.array(only_ended))
    keys = pa.concat_tables([upserts.select(key), marks.select(key)])
    inserts = assignments(columns, columns)
    # A row that was deleted before, and then once more by a batch that comes late, stays as it was.
    mark = quote(DELETED_AT)
    closes = {mark: f"COALESCE(t.{mark}, s.c{columns.index(DELETED_AT)})"}
    return Merge(
        source=merge_source(columns, upserts, marks, {}),
        condition=same_key(keys, columns, bounded=found.truncated_at is None),
        inserts=inserts,
        updates=inserts,
        closes=closes,
        rest=_rest(found),
    )


def _rest(found: Versions) -> Update | None:
    if found.truncated_at is None:
        return None
    when = found.place(np.array([found.truncated_at])).column(COMMIT_TS)[0].as_py()
    return Update(f"t.{_THERE}", {quote(DELETED_AT): timestamp(when)})
