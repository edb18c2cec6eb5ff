"""A lake table that holds every change: rows are only ever added.

A table that is loaded anew goes on behind a TRUNCATE of its own, so that whoever folds the changes
arrives at the rows of the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.model import Relation
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bulk import Pieces, add_all
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.target import Target
from tailrace.sinks.load_rows import truncate_row
from tailrace.sinks.refusal import require_names
from tailrace.sinks.sink import Load


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
        every = rows if target.is_empty else chain([truncate_row(load)], rows)
        add_all(target, Pieces(target.schema, every), commit)
