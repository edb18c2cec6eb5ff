"""A lake table that holds the source's rows as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Relation
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bulk import Pieces, replace_all
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.merge import upsert_merge
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.rewrite import Rewrite
from tailrace.sinks.delta.target import Target
from tailrace.sinks.events import with_keys
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.settle import settle
from tailrace.sinks.shape import renewed, row_schema
from tailrace.sinks.sink import Load


class UpsertForm:
    """The source's columns and `_text`."""

    replaces_shape = True

    def __init__(self, engine: Engine, options: DeltaOptions) -> None:
        self._engine = engine
        self._options = options

    def schema(self, relation: Relation) -> pa.Schema:
        """The key's columns are marked."""
        return row_schema(relation)

    def write(self, changes: TableChanges, target: Target, commit: Commit) -> None:
        """Merge one outcome for each key."""
        relation, schema = changes.relation, target.schema
        folded = settle(fold(changes), relation, target.read, in_place=True)
        upserts = conform(folded.upserts, schema)
        if folded.truncated:
            self._engine.overwrite(target, upserts, commit)
        elif target.is_empty:
            # No key can be there yet, so nothing has to be looked for, and nothing deleted.
            self._engine.append(target, upserts, commit)
        else:
            deletes = conform(folded.deletes, key_schema(schema, relation))
            self._merge(replace(folded, upserts=upserts, deletes=deletes), target, relation, commit)

    def _merge(self, fold: Fold, target: Target, relation: Relation, commit: Commit) -> None:
        key = list(relation.key)
        keys = pa.concat_tables([fold.upserts.select(key), fold.deletes])
        rewrite = Rewrite.of(target, keys) if self._engine.is_local and keys.num_rows else None
        if rewrite is not None:
            rewrite.run(fold, commit)
        else:
            self._engine.merge(target, upsert_merge(fold, target.schema.names, key), commit)

    def load(self, load: Load, rows: Iterable[pa.Table], target: Target, commit: Commit) -> None:
        """Begin the table anew."""
        shape = renewed(self.schema(load.relation), target.next_version)
        partition_by = self._options.partitions(load.relation)
        pieces = Pieces(shape, with_keys(rows, load.relation))
        replace_all(target, pieces, commit, partition_by=partition_by)


def key_schema(schema: pa.Schema, relation: Relation) -> pa.Schema:
    """The key's columns, typed as in the table."""
    return pa.schema([schema.field(name) for name in relation.key])
