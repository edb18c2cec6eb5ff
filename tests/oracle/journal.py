"""Writers that keep a journal: what was committed is known to the last change.

Every change of a captured table is noted, in the same transaction, in a table that nobody captures.
A row counts its own changes in `n`, so that the journal holds (table, id, n) for each of them, and
the log must hold just these: none missing, none twice, and for each row in the order of `n`. A row
that moves to another key takes its `n` along.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from tailrace.storage import Store
from tailrace.storage.store import ObjectMissing
from tests.capture.oracle import LoggedChange, read_changes

SCHEMA: Final = "shop"
TABLES: Final = ("plain", "parted", "chained")
RANGE: Final = 1_000_000
"""How many keys a writer may make."""

_MAKE: Final = """
CREATE SCHEMA shop;
CREATE SCHEMA journal;
CREATE TABLE journal.changes (tab text, id bigint, n int, op text);
CREATE TABLE shop.plain (id bigint PRIMARY KEY, n int NOT NULL, v text);
CREATE TABLE shop.parted (id bigint PRIMARY KEY, n int NOT NULL, v text) PARTITION BY HASH (id);
CREATE TABLE shop.parted_0 PARTITION OF shop.parted FOR VALUES WITH (modulus 2, remainder 0);
CREATE TABLE shop.parted_1 PARTITION OF shop.parted FOR VALUES WITH (modulus 2, remainder 1);
CREATE TABLE shop.chained (id bigint PRIMARY KEY, n int NOT NULL, v text);
-- A trigger of the application that changes the row of another statement's making.
CREATE FUNCTION journal.chain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() = 1 AND NEW.id % 3 = 0 THEN
        UPDATE shop.chained SET n = n + 1, v = 'chained' WHERE id = NEW.id;
        INSERT INTO journal.changes VALUES ('chained', NEW.id, NEW.n + 1, 'U');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER aa_chain AFTER INSERT ON shop.chained
    FOR EACH ROW EXECUTE FUNCTION journal.chain();
"""


def make(connection: psycopg.Connection) -> None:
    """The captured tables and the journal."""
    connection.execute(_MAKE)


class Journaling:
    """`with Journaling(connect, seed, count=8): …`; errors of the server's restarts are expected,
    any other ends the run and is raised by `check`. With `is_strict` each writer has rows of its
    own, so that none may ever fail for another's sake, and none is expected to. With `is_wild` rows
    move to other keys, and some transactions are prepared first. Some wait inside for `wait_s` at
    most. After a transaction a writer has a pause of `pause_s` at most: so many can be at work and
    not wait for the machine.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        seed: int,
        *,
        count: int,
        is_strict: bool = False,
        is_wild: bool = False,
        wait_s: float = 0.5,
        pause_s: float = 0.0,
    ) -> None:
        self._connect = connect
        self._is_strict = is_strict
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.committed = 0
        self._failure: BaseException | None = None
        last = [number * RANGE for number in range(count)]
        self._writers = [
            _Writer(
                Random(seed * 1000 + number),
                number,
                last,
                is_strict=is_strict,
                is_wild=is_wild,
                wait_s=wait_s,
            )
            for number in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(writer,)) for writer in self._writers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if kind is None:
            self.check()
            with self._connect() as connection:
                for writer in self._writers:
                    writer.finish_prepared(connection)

    def check(self) -> None:
        """Raise what ended a writer."""
        if self._failure is not None:
            raise self._failure

    def _run(self, writer: _Writer) -> None:
        random = writer.random
        while not self._stop.is_set():
            try:
                with self._connect() as connection:
                    writer.finish_prepared(connection)
                    connection.execute(
                        sql.SQL("SET synchronous_commit = {}").format(
                            sql.Literal(random.choice(["on", "off"]))
                        )
                    )
                    while not self._stop.is_set():
                        writer.transact(connection, self._stop)
                        self.committed += 1
                        if self._pause_s:
                            self._stop.wait(random.uniform(0.0, self._pause_s))
            except psycopg.OperationalError as error:
                # Restarts, and deadlocks between writers themselves.
                if self._is_strict:
                    self._failure = error
                    return
                self._stop.wait(0.05)
            except BaseException as error:
                self._failure = error
                return


class _Writer:
    """One connection's worth. New keys are of its own range; `last` has the last of each writer's,
    and all of them are changed by all.
    """

    def __init__(
        self,
        random: Random,
        number: int,
        last: list[int],
        *,
        is_strict: bool,
        is_wild: bool,
        wait_s: float,
    ) -> None:
        self.random = random
        self._number = number
        self._last = last
        self._is_strict = is_strict
        self._is_wild = is_wild
        self._wait_s = wait_s

    def transact(self, connection: psycopg.Connection, stop: threading.Event) -> None:
        """One transaction that reads, writes, now and then waits, and now and then rolls back."""
        if self._is_wild and self.random.random() < 0.1:
            connection.execute("BEGIN")
            self._read_and_write(connection, stop)
            connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(self._gid))
            connection.execute(sql.SQL("COMMIT PREPARED {}").format(self._gid))
            return
        with connection.transaction(force_rollback=self.random.random() < 0.1):
            self._read_and_write(connection, stop)

    def finish_prepared(self, connection: psycopg.Connection) -> None:
        """Commit what was prepared when the connection before this one was lost."""
        query = sql.SQL("SELECT 1 FROM pg_prepared_xacts WHERE gid = {}").format(self._gid)
        if connection.execute(query).fetchone() is not None:
            connection.execute(sql.SQL("COMMIT PREPARED {}").format(self._gid))

    @property
    def _gid(self) -> sql.Literal:
        return sql.Literal(f"journal {self._number}")

    def _read_and_write(self, connection: psycopg.Connection, stop: threading.Event) -> None:
        random = self.random
        for _ in range(random.choice([1, 1, 1, 2, 3])):
            table = random.choice(TABLES)
            connection.execute(
                sql.SQL("SELECT count(*) FROM {} WHERE id > %s").format(_name(table)),
                [self._last[self._number] - 20],
            )
            with connection.transaction(force_rollback=random.random() < 0.1):
                self._change(connection, table)
        if random.random() < 0.1:
            stop.wait(random.uniform(0.1, 1.0) * self._wait_s)

    def _change(self, connection: psycopg.Connection, table: str) -> None:
        random = self.random
        match random.choice("IIUUUDM" if self._is_wild else "IIUUUD"):
            case "I":
                rows = random.choice([1, 1, 2, 30])
                for _ in range(rows):
                    self._insert(connection, table)
            case "U":
                query = "UPDATE {} SET n = n + 1, v = %s WHERE id = ANY (%s) RETURNING id, n"
                self._note(connection, table, "U", query, [random.choice("abc"), self._some()])
            case "M":
                # Between partitions it would be a delete and an insert.
                self._last[self._number] += 1
                query = "UPDATE {} SET id = %s, n = n + 1 WHERE id = %s RETURNING id, n"
                moved = (self._last[self._number], self._some()[0])
                self._note(connection, "plain", "M", query, [*moved])
            case _:
                query = "DELETE FROM {} WHERE id = ANY (%s) RETURNING id, n + 1"
                self._note(connection, table, "D", query, [self._some()[:2]])

    def _insert(self, connection: psycopg.Connection, table: str) -> None:
        self._last[self._number] += 1
        query = "INSERT INTO {} VALUES (%s, 0, 'new') RETURNING id, n"
        self._note(connection, table, "I", query, [self._last[self._number]])

    def _some(self) -> list[int]:
        # In one order, so that writers of one row seldom wait for each other in a circle.
        last = self._last[self._number] if self._is_strict else self.random.choice(self._last)
        first = max(last - last % RANGE, last - 60)
        return sorted(self.random.randint(first, last) for _ in "abc")

    def _note(
        self,
        connection: psycopg.Connection,
        table: str,
        op: str,
        query: str,
        values: list[object],
    ) -> None:
        rows = connection.execute(sql.SQL(query).format(_name(table)), values).fetchall()
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO journal.changes VALUES (%s, %s, %s, %s)",
                [(table, *row, op) for row in rows],
            )


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, table)


def problems(
    store: Store, connection: psycopg.Connection, *, excused: Collection[str] = ()
) -> list[str]:
    """What the log has too much, too little, or in the wrong order; at most ten. Of `excused`
    tables changes were lost, and this was said: nothing is asked of these.
    """
    try:
        changes = list(read_changes(store))
    except ObjectMissing as missing:
        # Segments are merged without grace while it is read.
        return [str(missing)]
    truth = Counter(
        (tab, int(id_), int(n), op)
        for tab, id_, n, op in connection.execute("SELECT * FROM journal.changes").fetchall()
        if tab not in excused
    )
    counts: dict[tuple[str, int], int] = {}
    logged: Counter[tuple[str, int, int, str]] = Counter()
    faults = []
    for change in changes:
        if change.relation.schema != SCHEMA or change.relation.name in excused:
            continue
        table, key = change.relation.name, _key(change)
        before = _key_before(change)
        expected = counts.get((table, before), -1) + 1
        number = expected if change.op == "D" else int(_values(change)["n"] or 0)
        if number != expected:
            faults.append(f"{table} {key}: change {number} comes where {expected} is due")
        counts[table, key] = number
        logged[table, key, number, change.op if before == key else "M"] += 1
    faults += [f"missing: {each}" for each in (truth - logged)]
    faults += [f"too much: {each}" for each in (logged - truth)]
    return faults[:10]


def _values(change: LoggedChange) -> dict[str, str | None]:
    values = change.new if change.new is not None else change.old
    assert values is not None
    return values


def _key(change: LoggedChange) -> int:
    return int(_values(change)["id"] or 0)


def _key_before(change: LoggedChange) -> int:
    """The key that the row had; Postgres sends it if it is another one."""
    return int((change.old or _values(change))["id"] or 0)
