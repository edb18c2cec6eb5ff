"""One outcome for each key, brought into a table: through staging tables and one MERGE.

    fill      a row that moves to another key takes the values that were not sent along
    delete    keys that must not be there afterwards
    lacking   an upsert that keeps a value of a row which the target does not have: an error
    merge     rows that are there are set, kept values left as they are; others are inserted

Deletes come before the MERGE: Postgres may take for one key what was told as two (1.0 and 1.00). A
kept value stays where it is, without being read or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from tailrace.errors import TargetLost
from tailrace.model import Relation
from tailrace.postgres.quote import identifier
from tailrace.postgres.session import Connection
from tailrace.sinks.fold import Fold
from tailrace.sinks.postgres.staging import DELETES, UPSERTS, places, stage_deletes, stage_upserts
from tailrace.sinks.postgres.target import Target


def merge(conn: Connection, target: Target, relation: Relation, fold: Fold) -> None:
    """Apply the fold to a target that has its columns. Raises SinkError, or as psycopg does."""
    statements = _Statements(target, relation, list(fold.kept))
    if fold.upserts.num_rows:
        stage_upserts(conn, target, relation, fold)
    if fold.kept:
        conn.execute(statements.fill())
    if fold.deletes.num_rows:
        stage_deletes(conn, target, relation, fold)
        conn.execute(statements.delete())
    # As late as this: a cascade of the target's own may have deleted more.
    if fold.kept and conn.execute(statements.lacking()).fetchone() is not None:
        raise lacking_row(relation)
    if fold.upserts.num_rows:
        conn.execute(statements.merge())


def lacking_row(relation: Relation) -> TargetLost:
    """A target that is not what the stream left behind."""
    return TargetLost(
        f"the target of {relation.qualified} lacks a row that the source has updated",
        hint="the target was changed by something else, or the stream began without a base;"
        f" `tailrace snapshot {relation.qualified}` delivers the table anew",
    )


@dataclass(frozen=True, slots=True)
class _Statements:
    """`t` is the target, `s` what is staged; `kept` are the columns of which values are kept."""

    target: Target
    relation: Relation
    kept: Sequence[str]

    def lacking(self) -> sql.Composed:
        return sql.SQL(
            "SELECT FROM {} AS s WHERE ({}) AND NOT EXISTS (SELECT FROM {} AS t WHERE {}) LIMIT 1"
        ).format(UPSERTS, self._keeping(), self.target.name, self._same_key(self._origins()))

    def fill(self) -> sql.Composed:
        key = zip(self._own_key(), self._origins(), strict=True)
        # By their texts, as they were told apart: 1.0 becomes 1.00, and its row is deleted.
        moved = [sql.SQL("s.{}::text <> s.{}::text").format(*map(identifier, p)) for p in key]
        values = [
            sql.SQL("{} = {}").format(self._place(name), self._value(name)) for name in self.kept
        ]
        flags = [sql.SQL("{} = false").format(identifier(flag)) for flag in places("k", self.kept)]
        return sql.SQL("UPDATE {} AS s SET {} FROM {} AS t WHERE ({}) AND ({}) AND {}").format(
            UPSERTS,
            sql.SQL(", ").join([*values, *flags]),
            self.target.name,
            self._keeping(),
            sql.SQL(" OR ").join(moved),
            self._same_key(self._origins()),
        )

    def delete(self) -> sql.Composed:
        same = self._same_key(places("c", self.relation.key))
        query = sql.SQL("DELETE FROM {} AS t USING {} AS s WHERE {}")
        return query.format(self.target.name, DELETES, same)

    def merge(self) -> sql.Composed:
        names = self.relation.column_names
        inserted = [sql.SQL("s.{}").format(self._place(name)) for name in names]
        return sql.SQL(
            "MERGE INTO {} AS t USING {} AS s ON {} WHEN MATCHED THEN {}"
            " WHEN NOT MATCHED THEN INSERT ({}) VALUES ({})"
        ).format(
            self.target.name,
            UPSERTS,
            self._same_key(self._own_key()),
            self._update(),
            sql.SQL(", ").join(map(identifier, names)),
            sql.SQL(", ").join(inserted),
        )

    def _update(self) -> sql.Composable:
        names, key = self.relation.column_names, self.relation.key
        held = [column.name for column in self.target.layout.columns]
        assignments = [
            *(
                sql.SQL("{} = {}").format(identifier(name), self._value(name))
                for name in names
                if name not in key
            ),
            *(sql.SQL("{} = NULL").format(identifier(name)) for name in held if name not in names),
        ]
        if not assignments:
            return sql.SQL("DO NOTHING")
        return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(assignments))

    def _value(self, name: str) -> sql.Composed:
        """A column's new value: the one that was sent, or the one that the target has."""
        sent = sql.SQL("s.{}").format(self._place(name))
        if name not in self.kept:
            return sent
        flag = identifier(f"k{self.kept.index(name)}")
        return sql.SQL("CASE WHEN s.{} THEN t.{} ELSE {} END").format(flag, identifier(name), sent)

    def _keeping(self) -> sql.Composed:
        flags = [sql.SQL("s.{}").format(identifier(flag)) for flag in places("k", self.kept)]
        return sql.SQL(" OR ").join(flags)

    def _place(self, name: str) -> sql.Identifier:
        return identifier(f"c{self.relation.column_names.index(name)}")

    def _own_key(self) -> list[str]:
        return [f"c{self.relation.column_names.index(name)}" for name in self.relation.key]

    def _origins(self) -> list[str]:
        return places("o", self.relation.key)

    def _same_key(self, staged: Sequence[str]) -> sql.Composed:
        """Whether a row of the target has the key that these staged columns have."""
        pairs = zip(self.relation.key, staged, strict=True)
        equal = [sql.SQL("t.{} = s.{}").format(*map(identifier, pair)) for pair in pairs]
        return sql.SQL(" AND ").join(equal)
