"""The tables that the writers write: of every kind that capture treats differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

SCHEMA: Final = "work"
LEAVES: Final = 4
LEAF_ROWS: Final = 1 << 20
"""How many keys each partition has room for, for each writer alike."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with columns writer, seq, n, small and large beside its key."""

    name: str
    key: tuple[str, ...] = ("id",)

    @property
    def qualified(self) -> str:
        """`schema.name`."""
        return f"{SCHEMA}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """For a statement."""
        return sql.Identifier(SCHEMA, self.name)


PLAIN: Final = Table("plain")
WHOLE: Final = Table("whole")
PAIRS: Final = Table('Pairs of "keys"', key=("id", "part"))
PARTED: Final = Table("parted")
PARENT: Final = Table("parent")
SHAPED: Final = Table("shaped")
RESHAPED: Final = Table("reshaped")
LATE: Final = Table("late")
CHILD: Final = Table("child")
TABLES: Final = (PLAIN, WHOLE, PAIRS, PARTED, PARENT, SHAPED, RESHAPED, LATE)
"""Those that every writer writes; CHILD follows PARENT, and LATE comes late. SHAPED changes in ways
that every lake can follow, RESHAPED in any way, which only a lake without older rows can.
"""

AT_FIRST: Final = (*(table for table in TABLES if table is not LATE), CHILD)

TRUNCATED: Final = (PLAIN, PAIRS, PARENT)
"""The others keep their rows, so that there is something to alter and to move."""

_COLUMNS: Final = sql.SQL(
    'writer int NOT NULL, seq int NOT NULL, n int, small text, large text COLLATE "C"'
)


def create_tables(connection: psycopg.Connection) -> None:
    """All of them but the late one."""
    connection.execute("CREATE SCHEMA work")
    for table in AT_FIRST:
        if table is not CHILD:
            create_table(connection, table)
    connection.execute("ALTER TABLE work.whole REPLICA IDENTITY FULL")
    connection.execute(
        "CREATE TABLE work.child (id bigint PRIMARY KEY, "
        "parent bigint NOT NULL REFERENCES work.parent ON DELETE CASCADE)"
    )


def create_table(connection: psycopg.Connection, table: Table) -> None:
    """One of them; large values stay out of the row, so that an UPDATE need not send them."""
    part = sql.SQL(", part text NOT NULL" if "part" in table.key else "")
    is_parted = table is PARTED
    connection.execute(
        sql.SQL("CREATE TABLE {} (id bigint NOT NULL{}, {}, PRIMARY KEY ({})){}").format(
            table.identifier,
            part,
            _COLUMNS,
            sql.SQL(", ").join(map(sql.Identifier, table.key)),
            sql.SQL(" PARTITION BY RANGE (id)" if is_parted else ""),
        )
    )
    if is_parted:
        for number in range(LEAVES):
            add_leaf(connection, number)
    if table is RESHAPED:
        # Writers rely on it, whatever the primary key is.
        connection.execute("ALTER TABLE work.reshaped ADD UNIQUE (id)")
    alter = sql.SQL("ALTER TABLE {} ALTER large SET STORAGE EXTERNAL")
    connection.execute(alter.format(table.identifier))


def add_leaf(connection: psycopg.Connection, number: int) -> None:
    """A partition; the odd ones have their columns in another order, and a hole among them."""
    leaf = sql.Identifier(SCHEMA, f"parted_{number}")
    bounds = sql.SQL("FOR VALUES FROM ({}) TO ({})").format(
        number * LEAF_ROWS, (number + 1) * LEAF_ROWS
    )
    if number % 2 == 0:
        create = sql.SQL("CREATE TABLE {} PARTITION OF work.parted {}")
        connection.execute(create.format(leaf, bounds))
        return
    connection.execute(
        sql.SQL(
            'CREATE TABLE {} (large text COLLATE "C", gone int, small text, n int, '
            "seq int NOT NULL, writer int NOT NULL, id bigint PRIMARY KEY)"
        ).format(leaf)
    )
    connection.execute(sql.SQL("ALTER TABLE {} DROP gone").format(leaf))
    attach = sql.SQL("ALTER TABLE work.parted ATTACH PARTITION {} {}")
    connection.execute(attach.format(leaf, bounds))
