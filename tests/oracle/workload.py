"""Eight writers at once, each in a thread of its own, until told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from tests.oracle.tables import LATE, RESHAPED, SHAPED, create_table, create_tables
from tests.oracle.writer import Operator, Writer

WRITERS: Final = 8
PAUSE_S: Final = 0.01
"""Between two transactions of a writer: capture shares the machine with them."""


class Workload:
    """A `with` makes the tables and lets the writers write; its end waits for them."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection], seed: int, *, unstreamed: bool
    ) -> None:
        self._connect = connect
        self._stop = threading.Event()
        self._error: BaseException | None = None
        with connect() as connection:
            create_tables(connection)
        writers = [Writer(connect, number, seed) for number in range(1, WRITERS)]
        operator = Operator(connect, 0, seed)
        operator.unstreamed = unstreamed
        self.writers = [operator, *writers]
        self._threads = [
            threading.Thread(target=self._write, args=[writer], name=f"writer-{writer.number}")
            for writer in self.writers
        ]

    @property
    def committed(self) -> int:
        """How many transactions so far."""
        return sum(writer.committed for writer in self.writers)

    @property
    def refused(self) -> int:
        """How many came at the wrong time."""
        return sum(writer.refused for writer in self.writers)

    def make_late_table(self, *, row_count: int) -> None:
        """A table that comes while the others are written, with rows that need a base."""
        with self._connect() as connection, connection.transaction():
            create_table(connection, LATE)
            connection.execute(
                "INSERT INTO work.late (id, writer, seq, small, large) "
                "SELECT -g, 0, 0, 'early', repeat('e', 3000) FROM generate_series(1, %s) g",
                [row_count],
            )

    def check(self) -> None:
        """Raise what a writer did not expect."""
        if self._error is not None:
            raise self._error

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
            thread.join()
        if error is None:
            self.check()
            self._write_last_row()

    def _write_last_row(self) -> None:
        """Postgres tells a table's new shape with its next row: until then the log cannot know."""
        with self._connect() as connection:
            for table in (SHAPED, RESHAPED):
                insert = sql.SQL(
                    "INSERT INTO {} (id, writer, seq) VALUES (-1, 0, 0) "
                    "ON CONFLICT (id) DO UPDATE SET seq = 0"
                )
                connection.execute(insert.format(table.identifier))

    def _write(self, writer: Writer) -> None:
        try:
            while not self._stop.wait(PAUSE_S):
                writer.step()
        except BaseException as error:
            self._error = error
            self._stop.set()
        finally:
            writer.close()
