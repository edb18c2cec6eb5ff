"""The shapes in which a stream has delivered its tables last."""

from __future__ import annotations

from tailrace.errors import LogError
from tailrace.log.bases import newest_bases
from tailrace.log.history import headers_back
from tailrace.model import Offset, Relation
from tailrace.spark.selection import Selection
from tailrace.storage import Store
from tailrace.streams.taken import Taken


class Shapes:
    """Remembers what it has found: then only what came since is looked at."""

    def __init__(self, store: Store, selection: Selection) -> None:
        self._store = store
        self._selection = selection
        self._known: dict[int, tuple[Offset, Relation]] = {}

    def of(self, table: Taken) -> Relation:
        """As its newest change at or before the table's position has it; else as its base has."""
        seen, known = self._known.get(table.oid, (None, None))
        if seen != table.position:
            found = self._since(table, seen) or known or self._based(table)
            self._known[table.oid] = table.position, found
        return self._selection.narrow(self._known[table.oid][1])

    def keyed(self, relation: Relation) -> Relation:
        """A table as the log has it, but with the stream's own key; raises SchemaError."""
        return Selection(key=self._selection.key).narrow(relation)

    def _since(self, table: Taken, seen: Offset | None) -> Relation | None:
        for header in headers_back(self._store):
            if seen is not None and Offset.whole(header.end) <= seen:
                return None
            uses = [
                use
                for use in header.relations
                if use.relation.oid == table.oid and use.since <= table.position
            ]
            if uses:
                return max(uses, key=lambda use: use.since).relation
        return None

    def _based(self, table: Taken) -> Relation:
        base = newest_bases(self._store).get(table.oid)
        if base is None:
            raise LogError(f"the log has nothing of {table.qualified} any more")
        return base.relation
