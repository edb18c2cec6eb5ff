"""One of the writers: a plan of random transactions that a seed makes.

Every row that it writes carries its number and a sequence of its own, so that a row that is lost,
doubled or old can be told. It writes rows of its own keys only, so that the plan does not depend on
what the others do; what they do to each other (locks, TRUNCATE, cascades, DDL) is up to Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from tests.oracle.tables import (
    LEAF_ROWS,
    LEAVES,
    PARENT,
    PARTED,
    SCHEMA,
    SHAPED,
    TABLES,
    TRUNCATED,
    Table,
)

KEYS: Final = 400
"""How many keys a writer has in each table: few, so that rows are met again and again."""

LARGE: Final = 3000
"""Characters of a large value: more than fits beside the others in a page."""


WIDENED: Final = ("int", "bigint")
RETYPED: Final = ("int", "bigint", "numeric(12, 2)", "float8")
REKEYED: Final = ("id", "id, writer", "writer, id")

REFUSALS: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.ForeignKeyViolation,
    # Tables and columns come and go; a table that a statement of ours still reads is not altered.
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.ObjectInUse,
    # As many transactions as may be are prepared already.
    psycopg.errors.OutOfMemory,
)
"""What Postgres may say to a transaction that comes at the wrong time."""


class RolledBack(Exception):
    """The plan wants this transaction, or this part of it, undone."""


class Writer:
    """What Postgres refuses (a lock, a missing column) is rolled back and counted."""

    def __init__(self, connect: Callable[[], psycopg.Connection], number: int, seed: int) -> None:
        self._connection = connect()
        self._connection.execute("SET lock_timeout = '300ms'; SET deadlock_timeout = '100ms'")
        self.number = number
        self.random = Random(f"{seed}-{number}")
        self._seq = 0
        self._transactions = 0
        self._prepared: list[str] = []
        self.committed = 0
        self.refused = 0

    def step(self) -> None:
        """One transaction, or the end of one that was prepared."""
        if self._prepared and self.random.random() < 0.3:
            self._finish_prepared()
            return
        try:
            self._transaction()
            self.committed += 1
        except RolledBack:
            pass
        except REFUSALS:
            self.refused += 1

    def close(self) -> None:
        """Leave nothing open."""
        while self._prepared:
            self._finish_prepared()
        self._connection.close()

    def _transaction(self) -> None:
        random = self.random
        is_prepared = random.random() < 0.15 and len(self._prepared) < 2
        self._transactions += 1
        gid = f"w{self.number}-{self._transactions}"
        self._execute("BEGIN")
        try:
            for _ in range(random.choice([1, 1, 2, 3, 5, 8])):
                self._part(depth=0)
            if random.random() < 0.05:
                # Long enough to be open across many an acknowledgement, a merge, a base.
                time.sleep(random.uniform(0.5, 3))
                self._change()
            if random.random() < 0.1:
                raise RolledBack
        except BaseException:
            with suppress(psycopg.OperationalError):
                self._execute("ROLLBACK")
            raise
        if is_prepared:
            self._execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
            self._prepared.append(gid)
        else:
            self._execute("COMMIT")

    def _finish_prepared(self) -> None:
        gid = self._prepared.pop(0)
        word = "ROLLBACK" if self.random.random() < 0.2 else "COMMIT"
        self._execute(sql.SQL("{} PREPARED {}").format(sql.SQL(word), gid))

    def _part(self, depth: int) -> None:
        """A change, or several inside a savepoint that may be rolled back."""
        if depth == 3 or self.random.random() > 0.2:
            self._change()
            return
        name = sql.Identifier(f"s{depth}")
        self._execute(sql.SQL("SAVEPOINT {}").format(name))
        for _ in range(self.random.randint(1, 3)):
            self._part(depth + 1)
        undo = self.random.random() < 0.4
        word = sql.SQL("ROLLBACK TO" if undo else "RELEASE")
        self._execute(sql.SQL("{} {}").format(word, name))

    def _change(self) -> None:
        table = self.random.choice(TABLES)
        (change,) = self.random.choices(
            [self._insert, self._insert_many, self._update, self._move, self._delete],
            weights=[30, 5, 35, 12, 12],
        )
        change(table)

    def _insert(self, table: Table) -> None:
        self._insert_rows(table, [self._key(table)])

    def _insert_many(self, table: Table) -> None:
        """Enough for a transaction that does not fit a part of small limits."""
        first = self._key(table)
        self._insert_rows(table, range(first, first + self.random.choice([20, 60, 200])))

    def _insert_rows(self, table: Table, keys: range | list[int]) -> None:
        part = "part" in table.key
        query = sql.SQL(
            "INSERT INTO {table} (id, {part}writer, seq, n, small, large) "
            "SELECT k, {value}{writer}, {seq}, {n}, {small}, {large} FROM unnest({keys}) AS k "
            "ON CONFLICT ({key}) DO UPDATE SET writer = EXCLUDED.writer, seq = EXCLUDED.seq, "
            "small = EXCLUDED.small"
        ).format(
            table=table.identifier,
            part=sql.SQL("part, " if part else ""),
            value=sql.SQL("'p' || k % 3, " if part else ""),
            key=sql.SQL(", ").join(map(sql.Identifier, table.key)),
            keys=list(keys),
            **self._values(),
        )
        self._execute(query)
        if table is PARENT and self.random.random() < 0.7:
            insert = sql.SQL(
                "INSERT INTO work.child SELECT k * 4 + {}, k FROM unnest({}) AS k ON CONFLICT "
                "DO NOTHING"
            )
            self._execute(insert.format(self.random.randrange(4), list(keys)))

    def _update(self, table: Table) -> None:
        """Most leave the large value alone."""
        values = self._values()
        changed = [name for name in ("n", "small") if self.random.random() < 0.6]
        if self.random.random() < 0.15:
            changed.append("large")
        assignments = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), values[name])
            for name in ("writer", "seq", *changed)
        )
        where = self._some_rows(table)
        query = sql.SQL("UPDATE {} SET {} WHERE {}")
        self._execute(query.format(table.identifier, assignments, where))

    def _move(self, table: Table) -> None:
        """To another key, and of a partitioned table to another partition."""
        values = self._values()
        query = sql.SQL("UPDATE {} SET id = {}, seq = {}, writer = {} WHERE id = {}").format(
            table.identifier, self._key(table), values["seq"], self.number, self._key(table)
        )
        self._execute(query)

    def _delete(self, table: Table) -> None:
        self._execute(
            sql.SQL("DELETE FROM {} WHERE {}").format(table.identifier, self._some_rows(table))
        )

    def _values(self) -> dict[str, int | str | None]:
        random = self.random
        self._seq += 1
        return {
            "writer": self.number,
            "seq": self._seq,
            "n": random.choice([None, random.randrange(-(10**6), 10**6)]),
            "small": random.choice([None, "", "NULL", "\\N", f"tab\there {self._seq}", "ünï 🦆"]),
            "large": random.choice([None, f"{self._seq:08d}" * (LARGE // 8)]),
        }

    def _key(self, table: Table) -> int:
        key = self.number * KEYS + self.random.randrange(KEYS // 2)
        return key + self.random.randrange(LEAVES) * LEAF_ROWS if table is PARTED else key

    def _some_rows(self, table: Table) -> sql.Composed:
        first = self._key(table)
        last = first + self.random.choice([0, 0, 0, 3, 10])
        return sql.SQL("id BETWEEN {} AND {}").format(first, last)

    def _execute(self, query: sql.SQL | sql.Composed | str) -> None:
        self._connection.execute(query if isinstance(query, sql.Composable) else query.encode())


class Operator(Writer):
    """Writes as the others do, and beside that truncates and alters.

    With `unstreamed`, it also does what changes rows and is not streamed by Postgres: a base of the
    table must follow.
    """

    unstreamed = False
    _columns = 0

    def step(self) -> None:
        """Inside of a transaction an ALTER seldom gets its lock: some come alone, and wait."""
        if self.unstreamed and self.random.random() < 0.15:
            self._alter_alone()
        else:
            super().step()

    def _alter_alone(self) -> None:
        try:
            with self._connection.transaction():
                self._execute("SET LOCAL lock_timeout = '3s'")
                self._do_unstreamed()
            self.committed += 1
        except REFUSALS:
            self.refused += 1

    def _change(self) -> None:
        if self.random.random() < 0.75:
            super()._change()
            return
        acts = [self._truncate, self._add_column, self._drop_column]
        if self.unstreamed:
            acts.append(self._do_unstreamed)
        self.random.choice(acts)()

    def _truncate(self) -> None:
        # To truncate all partitions looks like truncating each, which is not streamed.
        tables = TRUNCATED + (PARTED,) * self.unstreamed
        chosen = self.random.sample(tables, self.random.choice([1, 1, 2]))
        names = sql.SQL(", ").join(table.identifier for table in chosen)
        self._execute(sql.SQL("TRUNCATE {} CASCADE").format(names))

    def _add_column(self) -> None:
        self._columns += 1
        add = sql.SQL("ALTER TABLE work.shaped ADD {} text").format(self._column(self._columns))
        self._execute(add)
        update = sql.SQL("UPDATE work.shaped SET {} = 'new', seq = {} WHERE {}")
        values = (self._column(self._columns), self._values()["seq"], self._some_rows(SHAPED))
        self._execute(update.format(*values))

    def _drop_column(self) -> None:
        number = self.random.randint(1, self._columns + 1)
        drop = sql.SQL("ALTER TABLE work.shaped DROP IF EXISTS {}").format(self._column(number))
        self._execute(drop)

    def _column(self, number: int) -> sql.Identifier:
        # A transaction that is rolled back leaves its number unused.
        return sql.Identifier(f"extra_{self.number}_{number}")

    def _do_unstreamed(self) -> None:
        self._columns += 1
        leaf = sql.Identifier(SCHEMA, f"parted_{self.random.randrange(LEAVES)}")
        column = self._column(self._columns)
        acts = [
            sql.SQL("TRUNCATE {}").format(leaf),
            sql.SQL("ALTER TABLE work.shaped ADD {} int DEFAULT 7").format(column),
            sql.SQL("ALTER TABLE work.shaped RENAME n TO {}").format(column),
            sql.SQL("ALTER TABLE work.shaped ADD IF NOT EXISTS n int").format(),
            sql.SQL("ALTER TABLE work.shaped ALTER n TYPE {}").format(self._one_of(WIDENED)),
            sql.SQL("ALTER TABLE work.reshaped ALTER n TYPE {}").format(self._one_of(RETYPED)),
            sql.SQL("ALTER TABLE work.reshaped DROP small, ADD small text").format(),
            sql.SQL(
                "ALTER TABLE work.reshaped DROP CONSTRAINT reshaped_pkey,"
                " ADD CONSTRAINT reshaped_pkey PRIMARY KEY ({})"
            ).format(self._one_of(REKEYED)),
        ]
        self._execute(self.random.choice(acts))

    def _one_of(self, texts: Sequence[LiteralString]) -> sql.SQL:
        return sql.SQL(self.random.choice(texts))
