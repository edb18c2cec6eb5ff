"""The changes of one table in one batch, folded to what an upsert must do: one outcome for each
key.

    state after = (truncated ? nothing : state before) - deletes, then upserts

The last change of a key wins. An update that changes the key is a delete of the old key and an
upsert of the new one. A TRUNCATE voids everything before it. A value that Postgres did not send
because it did not change is taken from the row's earlier change in the batch, followed across
changes of its key; if there is none, only the target has it, and it is marked in `kept`. It is
never NULL by omission.

Pure, and by the column: no Python runs per row, but for the rare row that inherits an entry of
`_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Op
from tailrace.model.change import TEXT, UNCHANGED
from tailrace.sinks.events import Events, is_op
from tailrace.sinks.keys import Mask, Rows
from tailrace.sinks.lineage import Lineage
from tailrace.sinks.refusal import require_key
from tailrace.sinks.texts import with_own_texts


@dataclass(frozen=True, slots=True)
class Fold:
    """What to do with the target, whose state before the batch it does not know.

    `upserts` has the table's columns and `_text`, one row for each key, in the order of the last
    changes. `deletes` has the key's columns: keys that must not be there afterwards. No key is in
    both.

    `kept` gives, for a column, the upserts whose value is still the target's. `origins` has, row
    by row beside `upserts`, the key under which the target has that row; it matters only where
    something is kept.

    `changed` and `erased` are the rows of the changes that decided about each upsert and delete,
    `moved` the deletes of keys that an update has changed.
    """

    truncated: bool
    upserts: pa.Table
    deletes: pa.Table
    origins: pa.Table
    kept: Mapping[str, Mask] = field(default_factory=dict)
    changed: Rows = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    erased: Rows = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    moved: Mask = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    @property
    def keeping(self) -> Rows:
        """The upserts that need something of the target's row."""
        if not self.kept:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(np.logical_or.reduce(list(self.kept.values())))


def fold(changes: TableChanges) -> Fold:
    """Fold the changes of one table; raises SchemaError if a row has no usable key, or if it lacks
    a value that only the source has.
    """
    relation = changes.relation
    require_key(relation)
    begin = _after_truncate(changes.rows)
    truncated, rows = begin > 0, changes.rows.slice(begin)
    rows = with_own_texts(rows).combine_chunks()
    events = Events.of(rows, relation)
    last = events.last_of_each_key()
    gone = events.deletes[last]
    final = np.sort(events.row[last[~gone]])
    upserts = rows.select([*relation.column_names, TEXT]).take(final)
    origins = events.keys.take(final)
    kept: dict[str, Mask] = {}
    if rows.column(UNCHANGED).null_count < rows.num_rows:
        upserts, origins, kept = Lineage.of(rows, events, relation).fill(upserts, final)
    # The target is emptied anyway.
    erased = np.empty(0, dtype=np.int64) if truncated else np.sort(last[gone])
    return Fold(
        truncated,
        upserts,
        events.keys.take(events.key[erased]),
        origins,
        kept,
        changed=begin + final,
        erased=begin + events.row[erased],
        moved=events.key[erased] >= rows.num_rows,
    )


def _after_truncate(rows: pa.Table) -> int:
    """The first row behind the last TRUNCATE; 0 if there is none."""
    truncates = np.flatnonzero(is_op(rows, Op.TRUNCATE))
    return int(truncates[-1]) + 1 if len(truncates) else 0
