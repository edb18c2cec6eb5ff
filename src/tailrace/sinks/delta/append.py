"""A lake table that holds every change, each once.

Rows are only ever added, but for a load that is older than what the table has: it goes back to the
load's position, because the changes since come again. A load stands behind a TRUNCATE of its own,
so that whoever folds the changes arrives at its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.model import Origin, Relation
from tailrace.model.change import COMMIT_LSN, ORIGIN
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bounds import quote
from tailrace.sinks.delta.bulk import Pieces, add_all, replace_some
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
        if target.is_empty:
            add_all(target, Pieces(target.schema, rows), commit)
            return
        pieces = Pieces(target.schema, chain([truncate_row(load)], rows))
        replace_some(target, pieces, commit, where=_from(load))


def _from(load: Load) -> str:
    """What comes again: everything behind the load's position, and the load itself."""
    lsn, at = quote(COMMIT_LSN), int(load.position)
    is_loaded = f"{quote(ORIGIN)} = '{Origin.SNAPSHOT.value}'"
    return f"{lsn} > {at} OR ({lsn} = {at} AND {is_loaded})"
