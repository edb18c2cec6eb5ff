"""A lake table that holds every change: rows are only ever added.

A table that is loaded anew goes on behind a TRUNCATE of its own, so that whoever folds the changes
arrives at the rows of the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.model import Op, Origin, Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, ORIGIN, XID
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bulk import Pieces, add_all
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.target import Target
from tailrace.sinks.refusal import require_names
from tailrace.sinks.sink import LOAD_ORDINAL, Load


class AppendForm:
    """All columns of a change."""

    replaces_shape = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def schema(self, relation: Relation) -> pa.Schema:
        """A key is not needed."""
        require_names(relation)
        return change_schema(relation)

    def write(self, changes: TableChanges, target: Target, commit: Commit) -> None:
        """Add the changes as they are."""
        self._engine.append(target, conform(changes.rows, target.schema), commit)

    def load(self, load: Load, rows: Iterable[pa.Table], target: Target, commit: Commit) -> None:
        """Add the rows, behind a TRUNCATE if there are any before them."""
        every = rows if target.is_empty else chain([_truncate_row(load)], rows)
        add_all(target, Pieces(target.schema, every), commit)


def _truncate_row(load: Load) -> pa.Table:
    row = {
        OP: Op.TRUNCATE.value,
        COMMIT_LSN: int(load.position),
        ORDINAL: LOAD_ORDINAL,
        COMMIT_TS: load.commit_ts_us,
        XID: 0,
        ORIGIN: Origin.SNAPSHOT.value,
    }
    return pa.Table.from_pylist([row], schema=change_schema(load.relation))
