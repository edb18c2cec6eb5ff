"""Bases taken beside a test, by threads: whoever reads, the rest is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from tailrace.bases.automatic import tables_in_want
from tailrace.bases.group import TableResult
from tailrace.bases.progress import BaseProgress
from tailrace.bases.reading import Outcome, Reading
from tailrace.bases.runner import Runner, ThreadRunner
from tailrace.bases.stretch import Stretch
from tailrace.bases.take import BaseSettings, BaseTaker
from tailrace.bases.watching import Limits
from tailrace.storage import Store
from tests.capture.running import NAMES, Running, is_published, settings
from tests.server import Database

PATIENT = Limits(try_ms=500, wait_s=120.0)


def oid_of(connection: psycopg.Connection, table: str) -> int:
    row = connection.execute("SELECT %s::regclass::oid::bigint", [table]).fetchone()
    assert row is not None
    return int(row[0])


def take(
    dsn: str,
    store: Store,
    *oids: int,
    runner: Runner | None = None,
    limits: Limits = PATIENT,
    show: Callable[[BaseProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> list[TableResult]:
    """Take bases: of these tables, or of all that are in want of one."""
    taker = BaseTaker(
        BaseSettings(dsn, NAMES, limits),
        store,
        runner or ThreadRunner(2),
        stop=stop or threading.Event(),
        show=show,
    )
    return taker.take(oids or tables_in_want(dsn, NAMES, store))


@contextmanager
def captured(
    database: Database, store: Store, connection: psycopg.Connection, *tables: str
) -> Iterator[Running]:
    """A capture that streams and has taken up these tables."""
    with Running(settings(database.dsn), store) as running:
        running.wait_for_stream()
        running.wait_until(lambda: all(is_published(connection, table) for table in tables))
        yield running


class Swapping(ThreadRunner):
    """While stretches are read another table stands under the name of theirs, the first time."""

    has_swapped = False

    def __init__(self, source: psycopg.Connection) -> None:
        super().__init__(2)
        self._source = source

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        if self.has_swapped:
            return super().run(reading, store, stretches)
        self.has_swapped = True
        with self._source.transaction():
            self._source.execute("ALTER TABLE t RENAME TO old")
            self._source.execute("CREATE UNLOGGED TABLE t (LIKE old INCLUDING ALL)")
        found = super().run(reading, store, stretches)
        with self._source.transaction():
            self._source.execute("DROP TABLE t")
            self._source.execute("ALTER TABLE old RENAME TO t")
        return found


class Rewriting(ThreadRunner):
    """Rewrites the table each time it is read."""

    def __init__(self, source: psycopg.Connection) -> None:
        super().__init__(2)
        self.run_count = 0
        self._source = source

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        self.run_count += 1
        self._source.execute("VACUUM FULL t")
        return super().run(reading, store, stretches)
