"""What a target table holds of its source: its rows as they are, or every change to them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Protocol

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import SchemaError
from tailrace.model import Relation
from tailrace.model.change import BEFORE, META_COLUMNS, TEXT, UNCHANGED
from tailrace.postgres.session import Connection
from tailrace.sinks.columns import Mode
from tailrace.sinks.events import with_keys
from tailrace.sinks.fold import fold
from tailrace.sinks.load_rows import truncate_row
from tailrace.sinks.postgres.change_texts import before_text, names_text
from tailrace.sinks.postgres.copy_in import copy_in
from tailrace.sinks.postgres.layout import Layout
from tailrace.sinks.postgres.merge import lacking_row, merge
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.value_texts import leftovers, texts_of
from tailrace.sinks.shape import require_same_mode
from tailrace.sinks.sink import Load


class Form(Protocol):
    """Writes inside a transaction of the caller's. It may raise what psycopg raises."""

    def layout(self, relation: Relation) -> Layout:
        """The target's columns; raises SchemaError if no such table can hold this relation."""
        ...

    def write(self, conn: Connection, target: Target, changes: TableChanges) -> None:
        """Apply the changes to a target that has all their columns."""
        ...

    def load(self, conn: Connection, target: Target, load: Load, rows: Iterable[pa.Table]) -> None:
        """Apply the load to a target as it is found."""
        ...


class UpsertForm:
    """The source's rows."""

    def layout(self, relation: Relation) -> Layout:
        """The source's columns, and its key as the primary key."""
        return Layout.of(relation, Mode.UPSERT)

    def write(self, conn: Connection, target: Target, changes: TableChanges) -> None:
        """Merge one outcome for each key."""
        folded = fold(changes)
        relation = changes.relation
        if folded.truncated:
            target.clear(conn)
        if not folded.truncated and not target.is_empty(conn):
            merge(conn, target, relation, folded)
            return
        # No key can be there, so nothing has to be looked for, and nothing deleted.
        if folded.kept:
            raise lacking_row(relation)
        names = relation.column_names
        copy_in(conn, target.name, names, texts_of(folded.upserts, names))

    def load(self, conn: Connection, target: Target, load: Load, rows: Iterable[pa.Table]) -> None:
        """Begin the table anew, with whatever columns."""
        layout = self.layout(load.relation)
        require_same_mode(target.layout.schema(), layout.schema(), load.relation)
        target.clear(conn)
        target = target.replace_shape(conn, layout)
        names = load.relation.column_names
        for part in with_keys(rows, load.relation):
            copy_in(conn, target.name, names, texts_of(part, names))


class AppendForm:
    """Every change, once, with the columns that say what happened. Rows are only ever added, but
    for a load that is older than what the table has: the changes since come again.
    """

    def layout(self, relation: Relation) -> Layout:
        """A key is not needed."""
        return Layout.of(relation, Mode.APPEND)

    def write(self, conn: Connection, target: Target, changes: TableChanges) -> None:
        """Add the changes as they are."""
        self._add(conn, target, changes.relation, changes.rows)

    def load(self, conn: Connection, target: Target, load: Load, rows: Iterable[pa.Table]) -> None:
        """Add the rows, behind a TRUNCATE if there are any before them."""
        try:
            layout = target.layout.fitted(self.layout(load.relation), load.relation)
        except SchemaError as error:
            # Here is the new base; another one would not help.
            raise SchemaError(str(error), hint=error.hint, retry=False) from None
        target.go_back(conn, load.position)
        is_empty = target.is_empty(conn)
        target = target.evolve(conn, layout)
        for part in rows if is_empty else chain([truncate_row(load)], rows):
            self._add(conn, target, load.relation, part)

    def _add(self, conn: Connection, target: Target, relation: Relation, rows: pa.Table) -> None:
        plain = [name for name in META_COLUMNS if name not in (UNCHANGED, BEFORE, TEXT)]
        names = [*relation.column_names, *plain]
        columns = [
            *texts_of(rows, names),
            names_text(rows.column(UNCHANGED).combine_chunks()),
            before_text(rows, relation, leftovers(rows)),
        ]
        copy_in(conn, target.name, [*names, UNCHANGED, BEFORE], columns)
