"""What a lake table holds of its source: one form for each mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Relation
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.target import Target
from tailrace.sinks.sink import Load


class Form(Protocol):
    """Turns changes and loads into commits. It may raise what its engine raises."""

    replaces_shape: bool
    """Whether a load begins the table anew, with whatever columns."""

    def schema(self, relation: Relation) -> pa.Schema:
        """The table's columns; raises SchemaError if no such table can hold this relation."""
        ...

    def write(self, changes: TableChanges, target: Target, commit: Commit) -> None:
        """Apply the changes in one commit; the target has all their columns."""
        ...

    def load(self, load: Load, rows: Iterable[pa.Table], target: Target, commit: Commit) -> None:
        """Apply the load in one commit."""
        ...
