"""What a target table holds of its source: its rows as they are, or every change to them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Protocol

import psycopg
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import SchemaError
from tailrace.model import Relation
from tailrace.postgres.session import Connection
from tailrace.sinks.columns import Mode
from tailrace.sinks.events import with_keys
from tailrace.sinks.fold import fold
from tailrace.sinks.letters.message import Message
from tailrace.sinks.load_rows import truncate_row
from tailrace.sinks.postgres.apart import Aside, check_at_once, write_apart
from tailrace.sinks.postgres.kept_values import with_kept_values
from tailrace.sinks.postgres.layout import Layout
from tailrace.sinks.postgres.merge import lacking_row, merge
from tailrace.sinks.postgres.records import (
    Records,
    base_records,
    change_records,
    change_texts,
    row_records,
)
from tailrace.sinks.postgres.refusals import is_refusal
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.types import TOLD_APART_BY_TEXT, target_type
from tailrace.sinks.postgres.value_texts import texts_of
from tailrace.sinks.shape import require_same_mode
from tailrace.sinks.sink import Load


class Letterbox(Aside, Protocol):
    """Where records wait that the target does not get."""

    def newest(self, table: str, lane: str, before: int) -> Message | None:
        """What waits last in a lane, of batches before this one."""
        ...

    def leaves_out(self, records: Records, at: int) -> bool:
        """Whether a record is not written whatever it says, nor put aside."""
        ...

    def outdo(self, table: str, sequence: int) -> None:
        """The batch of this number leaves no row of the table: what waits from before does so no
        more.
        """
        ...


class Form(Protocol):
    """Writes inside a transaction of the caller's. It may raise what psycopg raises."""

    def layout(self, relation: Relation) -> Layout:
        """The target's columns; raises SchemaError if no such table can hold this relation."""
        ...

    def can_part(self, relation: Relation) -> bool:
        """Whether a row of it can wait while others are written."""
        ...

    def write(self, conn: Connection, target: Target, changes: TableChanges) -> None:
        """Apply the changes to a target that has all their columns."""
        ...

    def write_apart(
        self,
        conn: Connection,
        target: Target,
        changes: TableChanges,
        sequence: int,
        aside: Letterbox,
        *,
        is_last: bool,
    ) -> None:
        """The same, but what is refused, or waits behind such a row, is put aside; unless it
        `is_last`, not if another table may be the reason: that is raised.
        """
        ...

    def load(
        self,
        conn: Connection,
        target: Target,
        load: Load,
        rows: Iterable[pa.Table],
        aside: Letterbox | None,
    ) -> None:
        """Apply the load to a target as it is found; without `aside` each row has to be taken."""
        ...


class UpsertForm:
    """The source's rows."""

    def layout(self, relation: Relation) -> Layout:
        """The source's columns, and its key as the primary key."""
        return Layout.of(relation, Mode.UPSERT)

    def can_part(self, relation: Relation) -> bool:
        """If equal keys have equal texts: else one could wait under one text, and be newer under
        another.
        """
        kinds = {column.name: target_type(relation, column).oid for column in relation.columns}
        return all(kinds.get(name) in TOLD_APART_BY_TEXT for name in relation.key)

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
        target.add(conn, names, texts_of(folded.upserts, names))

    def write_apart(
        self,
        conn: Connection,
        target: Target,
        changes: TableChanges,
        sequence: int,
        aside: Letterbox,
        *,
        is_last: bool,
    ) -> None:
        """Each outcome as a whole row, because it may come later than others."""
        folded = fold(changes)
        if folded.truncated:
            aside.outdo(changes.relation.qualified, sequence)
            target.clear(conn)
        records = row_records(changes.relation, folded, changes.rows, sequence)
        newest = partial(aside.newest, before=sequence)
        records = with_kept_values(conn, target, records, folded, newest, aside.leaves_out)
        write_apart(conn, target, records, aside, is_last=is_last)

    def load(
        self,
        conn: Connection,
        target: Target,
        load: Load,
        rows: Iterable[pa.Table],
        aside: Letterbox | None,
    ) -> None:
        """Begin the table anew, with whatever columns."""
        relation = load.relation
        layout = self.layout(relation)
        require_same_mode(target.layout.schema(), layout.schema(), relation)
        target.clear(conn)
        target = target.replace_shape(conn, layout)
        names = relation.column_names
        if aside is not None:
            check_at_once(conn, target)
        for part in with_keys(rows, relation):
            texts = pa.table(texts_of(part, names), names=list(names))
            if not _is_copied(conn, target, texts, aside):
                assert aside is not None
                write_apart(conn, target, base_records(relation, part, load.sequence), aside)


class AppendForm:
    """Every change, once, with the columns that say what happened. Rows are only ever added, but
    for a load that is older than what the table has: the changes since come again.
    """

    def layout(self, relation: Relation) -> Layout:
        """A key is not needed."""
        return Layout.of(relation, Mode.APPEND)

    def can_part(self, relation: Relation) -> bool:
        """Changes are told apart by their offsets."""
        return True

    def write(self, conn: Connection, target: Target, changes: TableChanges) -> None:
        """Add the changes as they are."""
        texts = change_texts(changes.relation, changes.rows)
        target.add(conn, texts.column_names, texts_of(texts, texts.column_names))

    def write_apart(
        self,
        conn: Connection,
        target: Target,
        changes: TableChanges,
        sequence: int,
        aside: Letterbox,
        *,
        is_last: bool,
    ) -> None:
        """The order of the changes is in their columns, so a TRUNCATE waits for nothing."""
        records = change_records(changes.relation, changes.rows, sequence)
        write_apart(conn, target, records, aside, is_last=is_last)

    def load(
        self,
        conn: Connection,
        target: Target,
        load: Load,
        rows: Iterable[pa.Table],
        aside: Letterbox | None,
    ) -> None:
        """Add the rows, behind a TRUNCATE if there are any before them."""
        relation = load.relation
        try:
            layout = target.layout.fitted(self.layout(relation), relation)
        except SchemaError as error:
            # Here is the new base; another one would not help.
            raise SchemaError(str(error), hint=error.hint, retry=False) from None
        target.go_back(conn, load.position)
        is_empty = target.is_empty(conn)
        target = target.evolve(conn, layout)
        if aside is not None:
            check_at_once(conn, target)
        for part in rows if is_empty else chain([truncate_row(load)], rows):
            if not _is_copied(conn, target, change_texts(relation, part), aside):
                assert aside is not None
                records = change_records(relation, part, load.sequence, is_base=True)
                write_apart(conn, target, records, aside)


def _is_copied(conn: Connection, target: Target, texts: pa.Table, aside: Letterbox | None) -> bool:
    """Add rows at once; False if the target does not take some of them, which it must unless they
    can be put aside.
    """
    names = texts.column_names
    if aside is None:
        target.add(conn, names, texts_of(texts, names))
        return True
    try:
        with conn.transaction():
            target.add(conn, names, texts_of(texts, names))
    except psycopg.Error as error:
        if not is_refusal(error):
            raise
        return False
    return True
