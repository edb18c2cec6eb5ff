"""A source with a journal, and the lives of capture on it: each ends by a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tailrace.capture import Settings
from tailrace.errors import SourceError
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.storage import FileStore, ObjectMissing
from tests.bases.oracle import fold
from tests.bases.taking import oid_of, take
from tests.capture.oracle import source_state
from tests.capture.running import CaptureProcess, hybrid, process, settings
from tests.oracle import journal
from tests.oracle.run import EAGER, SMALL
from tests.oracle.verdict import settle
from tests.server import Database

PATIENCE_S = 120.0
WRITERS = 3
ALL = len(journal.TABLES)
TABLES = [f"{journal.SCHEMA}.{table}" for table in journal.TABLES]
SLOTLESS = "slotless"
"""All tables by triggers, so that a slot is of no use."""


@dataclass
class Stage:
    """A source, its log, and how long capture waits for locks and for hand-overs."""

    database: Database
    directory: Path
    lock_timeout_ms: int = 900
    transition_timeout_s: float = 300.0
    shadow_s: float = 0.0

    def __post_init__(self) -> None:
        self.store = FileStore(self.directory / "log")
        with self.database.connect() as connection:
            journal.make(connection)

    def told(self, mode: str) -> Settings:
        """Tables in this mode; a slot may be there whatever it is, unless it is SLOTLESS."""
        rules = hybrid(
            "trigger" if mode == SLOTLESS else "auto",
            tables={} if mode == SLOTLESS else dict.fromkeys(TABLES, mode),
            lock_timeout_ms=self.lock_timeout_ms,
            transition_timeout_s=self.transition_timeout_s,
            shadow_s=self.shadow_s,
        )
        return settings(
            self.database.dsn, *TABLES, limits=SMALL, merge=EAGER, sender_timeout_s=3, hybrid=rules
        )

    def live_until(self, mode: str, state: str) -> None:
        """Capture until every table is in this state; then it is killed."""
        query = "SELECT count(*) FROM tailrace.change_tracking WHERE cdc_mode = %s"
        with process(self.told(mode), self.store.url, self.directory / "said") as capture:
            self.wait_for(capture, query, state)

    def live_until_given_up(self, mode: str) -> None:
        """Capture until every table is handed over, or has fallen back and says why."""
        query = """SELECT count(*) FROM tailrace.change_tracking
                    WHERE cdc_mode = 'WAL' OR cdc_mode = 'TRIGGER' AND last_error LIKE %s"""
        with process(self.told(mode), self.store.url, self.directory / "said") as capture:
            self.wait_for(capture, query, "%is being written%")

    def live_while(self, mode: str, is_over: Callable[[], bool]) -> None:
        """Capture until something else is over; then it is killed."""
        with process(self.told(mode), self.store.url, self.directory / "said") as capture:
            capture.wait_until(is_over)

    def oids(self) -> list[int]:
        """Of the tables."""
        with self.database.connect() as connection:
            return [oid_of(connection, table) for table in TABLES]

    def die_at(self, mode: str, *failpoints: str) -> None:
        """Capture until it dies at a step; then again, until it dies at the next."""
        output = self.directory / "said"
        for failpoint in failpoints:
            with process(self.told(mode), self.store.url, output, failpoint=failpoint) as capture:
                deadline = time.monotonic() + PATIENCE_S
                while capture.is_running:
                    assert time.monotonic() < deadline, f"{failpoint} never came\n{capture.said()}"
                    time.sleep(0.02)
                assert capture.wait() == 137, capture.said()

    def wait_for(self, capture: CaptureProcess, query: str, argument: str) -> None:
        """Until the query, which may fail meanwhile, counts every table."""
        deadline = time.monotonic() + PATIENCE_S
        with self.database.connect() as connection:
            while True:
                assert capture.is_running, capture.said()
                assert time.monotonic() < deadline, f"never {argument}\n{capture.said()}"
                with suppress(psycopg.errors.UndefinedTable):
                    if connection.execute(query.encode(), [argument]).fetchone() == (ALL,):
                        return
                time.sleep(0.05)

    def writing(
        self, count: int = WRITERS, *, is_strict: bool = False, pause_s: float = 0.0
    ) -> journal.Journaling:
        """Writers with transactions open across every step."""
        connect = self.database.connect
        return journal.Journaling(
            connect, seed=1, count=count, is_strict=is_strict, pause_s=pause_s
        )

    def settle(self, mode: str) -> None:
        """At rest, the log comes to hold just what was committed."""
        with (
            process(self.told(mode), self.store.url, self.directory / "said") as capture,
            self.database.connect() as connection,
        ):
            settle(
                lambda: journal.problems(self.store, connection),
                patience_s=PATIENCE_S,
                pause_s=0.3,
            )
            assert capture.terminate() == 0, capture.said()

    def settle_with_bases(self, mode: str) -> None:
        """At rest, with the bases that are wanted, the log comes to hold the tables as they are."""
        with (
            process(self.told(mode), self.store.url, self.directory / "said") as capture,
            self.database.connect() as connection,
        ):
            settle(self._take_bases, patience_s=PATIENCE_S, pause_s=0.3)
            settle(lambda: self._unlike(connection), patience_s=PATIENCE_S, pause_s=0.3)
            assert capture.terminate() == 0, capture.said()
        assert not wanted_bases(self.store, newest_positions(self.store))

    def _take_bases(self) -> list[str]:
        """What is wrong; as in a pipeline, it is tried again: the leader may be about to begin."""
        try:
            results = take(self.database.dsn, self.store)
        except SourceError as error:
            return [str(error)]
        return [str(result.error) for result in results if result.error is not None]

    def _unlike(self, connection: psycopg.Connection) -> list[str]:
        """The tables in which the log, folded over its bases, differs from the source."""
        try:
            folded = fold(self.store)
        except ObjectMissing as missing:
            # Segments are merged without grace while it is read.
            return [str(missing)]
        truth = source_state(connection, TABLES)
        return [table for table in TABLES if folded.get(table) != truth[table]]
