"""A table of the target database: as the catalog has it, made, and brought to another layout.

All of it happens inside the transaction that writes the rows: a change of shape is there with the
first row that needs it, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from tailrace.errors import SchemaError
from tailrace.model import Lsn, Origin, Relation
from tailrace.model.change import COMMIT_LSN, ORIGIN
from tailrace.postgres.binaries import Array
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.sinks.postgres.copy_in import copy_in
from tailrace.sinks.postgres.layout import Layout, TargetColumn
from tailrace.sinks.postgres.sessions import unlimited
from tailrace.sinks.postgres.types import ColumnType
from tailrace.sinks.postgres.watermark import note_target

DROPPED_COMMENT: Final = "tailrace: the source has dropped this column"

_READ: Final = """
SELECT c.oid::bigint, t.source, a.attname, a.atttypid::bigint, a.atttypmod,
       col_description(c.oid, a.attnum), array_position(i.indkey::int2[], a.attnum),
       a.atthasdef OR a.attidentity <> ''
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN tailrace_sink.targets t ON t.target = c.oid
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     AND a.attgenerated = ''
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = %s AND c.relname = %s
ORDER BY a.attnum
"""
_TYPES: Final = """
SELECT format_type(oid, typmod)
FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS wanted (oid, typmod, place) ORDER BY place
"""


@dataclass(frozen=True, slots=True)
class Target:
    """One table, with its columns at this moment of the transaction; somebody may have given
    `defaults` to some. What Postgres generates is not among them: nobody can write it.
    """

    oid: int
    name: sql.Identifier
    layout: Layout
    defaults: frozenset[str] = frozenset()

    @classmethod
    def open(cls, conn: Connection, place: tuple[str, str], relation: Relation) -> Target | None:
        """The table, if there is one; raises SchemaError if it is not this relation's."""
        rows = conn.execute(_READ, place).fetchall()
        if not rows:
            return None
        oid, source = rows[0][:2]
        if source != relation.qualified:
            _refuse_foreign(place, source, relation)
        columns = tuple(
            TargetColumn(name, ColumnType(kind, typmod), comment == DROPPED_COMMENT)
            for _, _, name, kind, typmod, comment, *_ in rows
        )
        key = sorted((row[6], row[2]) for row in rows if row[6] is not None)
        layout = Layout(columns, tuple(name for _, name in key))
        return cls(oid, qualified(*place), layout, frozenset(row[2] for row in rows if row[7]))

    @classmethod
    def make(
        cls, conn: Connection, place: tuple[str, str], relation: Relation, layout: Layout
    ) -> Target:
        """An empty table; it must not be there."""
        schema, _ = place
        row = conn.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        if row is None:
            conn.execute(statement("CREATE SCHEMA IF NOT EXISTS {}", identifier(schema)))
        name = qualified(*place)
        parts = [*_definitions(conn, layout.columns), *_primary_key(layout)]
        conn.execute(sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(parts)))
        made = conn.execute(
            "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            place,
        ).fetchone()
        assert made is not None, "the table was made"
        note_target(conn, made[0], relation.qualified)
        return cls(made[0], name, layout)

    def evolve(self, conn: Connection, layout: Layout) -> Target:
        """Add columns, widen types and mark what the source has dropped."""
        if layout == self.layout:
            return self
        held = {column.name: column for column in self.layout.columns}
        new = [column for column in layout.columns if column.name not in held]
        kept = [column for column in layout.columns if column.name in held]
        wider = [column for column in kept if column.type != held[column.name].type]
        actions = [
            *(sql.SQL("ADD COLUMN {}").format(each) for each in _definitions(conn, new)),
            *(
                sql.SQL("ALTER COLUMN {} TYPE {}").format(identifier(column.name), kind)
                for column, kind in zip(wider, type_names(conn, wider), strict=True)
            ),
        ]
        self._alter(conn, actions)
        for column in kept:
            if column.dropped and not held[column.name].dropped:
                comment = sql.SQL("COMMENT ON COLUMN {}.{} IS {}")
                place = (self.name, identifier(column.name), sql.Literal(DROPPED_COMMENT))
                conn.execute(comment.format(*place))
        return replace(self, layout=layout)

    def replace_shape(self, conn: Connection, layout: Layout) -> Target:
        """Get exactly these columns and this key, in this order; the table must have no rows."""
        if layout == self.layout:
            return self
        drops = [
            sql.SQL("DROP COLUMN {}").format(identifier(column.name))
            for column in self.layout.columns
        ]
        # By themselves: a column cannot go and come in one command.
        self._alter(conn, drops)
        adds = [*_definitions(conn, layout.columns), *_primary_key(layout)]
        self._alter(conn, [sql.SQL("ADD {}").format(each) for each in adds])
        return replace(self, layout=layout, defaults=frozenset())

    def is_empty(self, conn: Connection) -> bool:
        """Whether it has no row."""
        return conn.execute(statement("SELECT FROM {} LIMIT 1", self.name)).fetchone() is None

    def add(self, conn: Connection, names: Sequence[str], columns: Sequence[Array]) -> None:
        """Add these columns of texts as rows."""
        copy_in(conn, self.name, names, columns, defaults=self.defaults)

    def clear(self, conn: Connection) -> None:
        """Delete every row; however long it takes.

        Not by TRUNCATE: it would keep readers out, and those that began before would see nothing.
        """
        self._delete(conn, statement("DELETE FROM {}", self.name))

    def go_back(self, conn: Connection, position: Lsn) -> None:
        """Delete the changes behind a position, and a load that stands there."""
        # Literals: with parameters, a % in the name of a table would be one too.
        command = sql.SQL("DELETE FROM {0} WHERE {1} > {2} OR ({1} = {2} AND {3} = {4})")
        names = (identifier(COMMIT_LSN), int(position), identifier(ORIGIN))
        self._delete(conn, command.format(self.name, *names, Origin.SNAPSHOT.value))

    def _delete(self, conn: Connection, command: sql.Composed) -> None:
        with unlimited(conn):
            conn.execute(command)

    def _alter(self, conn: Connection, actions: list[sql.Composed]) -> None:
        if actions:
            every = sql.SQL(", ").join(actions)
            with unlimited(conn):
                conn.execute(sql.SQL("ALTER TABLE {} {}").format(self.name, every))


def _refuse_foreign(place: tuple[str, str], source: str | None, relation: Relation) -> None:
    name = ".".join(place)
    if source is None:
        raise SchemaError(
            f"table {name} of the target database was not made by this sink",
            hint="choose another schema for the sink, or take the table away",
        )
    raise SchemaError(
        f"table {name} of the target database is that of {source}, not of {relation.qualified}",
        hint="give tables of the same name sinks with different schemas",
    )


def type_names(conn: Connection, columns: Iterable[TargetColumn]) -> list[sql.SQL]:
    """The types as the server itself spells them."""
    kinds = [column.type for column in columns]
    found = conn.execute(_TYPES, ([each.oid for each in kinds], [each.typmod for each in kinds]))
    return [sql.SQL(name) for (name,) in found.fetchall()]


def _definitions(conn: Connection, columns: Iterable[TargetColumn]) -> list[sql.Composed]:
    columns = list(columns)
    return [
        sql.SQL("{} {}").format(identifier(column.name), kind)
        for column, kind in zip(columns, type_names(conn, columns), strict=True)
    ]


def _primary_key(layout: Layout) -> list[sql.Composed]:
    if not layout.key:
        return []
    names = sql.SQL(", ").join(map(identifier, layout.key))
    return [sql.SQL("PRIMARY KEY ({})").format(names)]
