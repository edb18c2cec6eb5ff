"""The hand-over oracle: tables go from triggers to the WAL and back, under writers.

Capture is killed anywhere, alone or beside a second one that takes over; the server is restarted,
also under it; the slot is lost. The log must hold just what was committed. Only of tables that came
from the WAL, be it up to a position that the log has not reached, when the slot was lost nothing is
asked but that they are to be read anew.

`python -m tests.oracle.handover FIRST_SEED COUNT [SECONDS]` runs many of them, and fails as well if
in all of that tables have hardly been handed over.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, LiteralString

import psycopg

from tailrace.capture import Settings
from tailrace.log import Reader
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.storage import FileStore
from tests.capture.running import CaptureProcess, hybrid, process, settings, wait_until
from tests.oracle import journal
from tests.oracle.run import EAGER, SMALL
from tests.oracle.verdict import settle
from tests.server import FAST_SETTINGS, VERSIONS, Database, Server

PATIENCE_S: Final = 240.0
WRITERS: Final = 8
SECONDS: Final = 30.0
LIFE_S: Final = 4.0
"""How long capture lives until it is killed, on average. In less a slot is hardly ever made: that
waits for every transaction that is open.
"""
WAIT_S: Final = 0.15
"""How long transactions are open at most, as a rule: a barrier has to win some of its locks."""

_ONE_WAY: Final = "table handed over to the wal"
_BACK: Final = "table went back to triggers"

FAILPOINTS: Final = (
    *("handover.after_transitioning", "handover.before_barrier", "handover.before_commit"),
    *("handover.after_barrier", "handover.before_back", "handover.after_back"),
    *("membership.after_record", "intake.after_commit", "seal.before_put", "seal.after_put"),
    *(
        "drain.before_message",
        "drain.after_append",
        "slot.after_made",
        "slot.before_begun",
        "slot.after_begun",
    ),
)


_IN_USE: Final = "SELECT 1 FROM pg_replication_slots WHERE active"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many transactions were committed, how often capture died, and how often tables were
    handed over, the one way and back.
    """

    committed: int
    deaths: int
    there: int
    back: int


class Run:
    """One seed on one server, whose wal_level is `replica` at first."""

    def __init__(self, server: Server, database: Database, directory: Path, seed: int) -> None:
        self._server = server
        self._database = database
        self._random = Random(seed)
        self._directory = directory
        self._lives = count(1)
        self.store = FileStore(directory / "log")
        self.kills = 0
        self.excused: set[str] = set()

    def take_up(self) -> None:
        """Let capture take up the tables while they are empty: so the log holds every change."""
        query = "SELECT count(*) FROM tailrace.change_tracking"
        with process(self._told(), self.store.url, self._output()) as capture:
            self._wait_for(capture, query)

    def go(self, seconds: float, writers: journal.Journaling) -> None:
        """Let everything happen, for so long; then come to rest with every table in WAL mode."""
        started = time.monotonic()
        has_wal = False
        while (past := time.monotonic() - started) < seconds:
            if past > seconds / 8 and not has_wal:
                self._restart(wal_level="logical")
                has_wal = True
            self._live(self._told(), self._random.choice([*FAILPOINTS, "", "", "", ""]))
            writers.check()
            if self._random.random() < 0.15:
                self._restart()
            if has_wal and not self.excused and self._random.random() < 0.3:
                self._lose_slot()
        if not has_wal:
            # The first life has taken all the time.
            self._restart(wal_level="logical")
        # A slot that was lost last is there again, and not only what was on record of it.
        query = """SELECT count(*) FROM tailrace.change_tracking, pg_replication_slots AS slots
                    WHERE cdc_mode = 'WAL' AND slots.slot_name = 'tailrace_main'"""
        with process(self._told("auto"), self.store.url, self._output()) as capture:
            self._wait_for(capture, query)

    def settle(self) -> None:
        """At rest: the log must come to hold all, and nothing else."""
        with (
            process(self._told("auto"), self.store.url, self._output()) as capture,
            self._database.connect() as connection,
        ):
            # Whoever is told to end before he has begun just ends.
            capture.wait_until(lambda: connection.execute(_IN_USE).fetchone() is not None)
            settle(
                lambda: journal.problems(self.store, connection, excused=self.excused),
                patience_s=PATIENCE_S,
            )
            wanted = wanted_bases(self.store, newest_positions(self.store))
            for table in self.excused:
                query = "SELECT %s::regclass::oid"
                ((oid,),) = connection.execute(query, [f"{journal.SCHEMA}.{table}"])
                assert int(oid) in wanted, f"{table} is not read anew"
            assert capture.terminate() == 0, capture.said()

    def _live(self, told: Settings, failpoint: str) -> None:
        """One life of capture, that ends by a failpoint or a kill."""
        random = self._random
        name = f"{failpoint}:{random.randint(1, 3)}" if failpoint else ""
        end = time.monotonic() + random.uniform(0.7, 1.3) * LIFE_S
        with ExitStack() as stack:
            if random.random() < 0.3:
                # It leads, or stands by and takes over; it is killed last.
                stack.enter_context(process(told, self.store.url, self._output()))
                end += LIFE_S
            with process(told, self.store.url, self._output(), failpoint=name) as capture:
                if random.random() < 0.1:
                    time.sleep(random.uniform(0.0, LIFE_S))
                    self._restart()
                while time.monotonic() < end - LIFE_S / 2 and capture.is_running:
                    time.sleep(0.05)
                if not capture.is_running:
                    assert capture.wait() in (0, 1, 137), capture.said()
            time.sleep(max(0.0, end - time.monotonic()))
        self.kills += 1

    def said(self, what: str) -> int:
        """How often capture has said so, in all its lives."""
        return sum(path.read_text().count(what) for path in self._directory.glob("said-*"))

    def _output(self) -> Path:
        return self._directory / f"said-{next(self._lives)}"

    def _told(self, mode: str = "") -> Settings:
        random = self._random
        choice = [mode] if mode else random.choice([["auto"], ["trigger"], ["auto", "trigger"]])
        modes = {f"{journal.SCHEMA}.{table}": random.choice(choice) for table in journal.TABLES}
        return settings(
            self._database.dsn,
            *(f"{journal.SCHEMA}.{table}" for table in journal.TABLES),
            limits=SMALL,
            merge=EAGER,
            sender_timeout_s=3,
            hybrid=hybrid(
                "auto",
                tables=modes,
                lock_timeout_ms=random.choice([200, 900]),
                poll_interval_s=random.choice([0.02, 0.2]),
                shadow_s=random.choice([0.0, 0.0, 0.2]),
            ),
        )

    def _restart(self, wal_level: str | None = None) -> None:
        if wal_level is not None:
            self._server.settings["wal_level"] = wal_level
        self._server.restart(immediate=self._random.random() < 0.5)

    def _lose_slot(self) -> None:
        with self._database.connect() as connection:
            self._excuse(connection)
            wait_until(lambda: connection.execute(_IN_USE).fetchone() is None)
            with suppress(psycopg.errors.UndefinedObject):
                connection.execute("SELECT pg_drop_replication_slot('tailrace_main')")
            # A barrier of who was killed a moment ago may have come through meanwhile.
            self._excuse(connection)

    def _excuse(self, connection: psycopg.Connection) -> None:
        query = """SELECT table_name FROM tailrace.change_tracking
                    WHERE cdc_mode = 'WAL' OR wal_until > %s::pg_lsn"""
        tip = str(Reader(self.store).tip().position)
        self.excused |= {name for (name,) in connection.execute(query, [tip])}

    def _wait_for(self, capture: CaptureProcess, query: LiteralString) -> None:
        """Until the query, which may fail meanwhile, counts every table."""

        def is_so() -> bool:
            with suppress(psycopg.Error), self._database.connect() as connection:
                return connection.execute(query).fetchone() == (len(journal.TABLES),)
            return False

        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert capture.is_running, capture.said()
            assert time.monotonic() < deadline, f"{query} is never so\n{capture.said()}"
            time.sleep(0.1)


def run_handover(server: Server, directory: Path, *, seed: int, seconds: float) -> Outcome:
    """One seed, from the beginning until it is at rest; raises what is wrong."""
    directory.mkdir(parents=True, exist_ok=True)
    with server.database() as database:
        with database.connect() as connection:
            journal.make(connection)
        run = Run(server, database, directory, seed)
        run.take_up()
        with journal.Journaling(
            database.connect, seed, count=WRITERS, is_wild=True, wait_s=WAIT_S
        ) as writers:
            run.go(seconds, writers)
        run.settle()
        with database.connect() as connection:
            # The server may need a moment to see that nobody reads any more.
            wait_until(lambda: connection.execute(_IN_USE).fetchone() is None)
            connection.execute("SELECT pg_drop_replication_slot('tailrace_main')")
        return Outcome(writers.committed, run.kills, run.said(_ONE_WAY), run.said(_BACK))


def main(first: int, seed_count: int, seconds: float) -> None:
    """Seed after seed, on both versions by turns; the first that fails ends it."""
    outcomes: list[Outcome] = []
    for seed in range(first, first + seed_count):
        directory = Path(tempfile.mkdtemp(prefix=f"tailrace-handover-{seed}-"))
        directory.chmod(0o711)
        version = VERSIONS[seed % len(VERSIONS)]
        server = Server(
            directory / "server",
            version=version,
            settings={**FAST_SETTINGS, "wal_level": "replica"},
        )
        with server:
            outcome = run_handover(server, directory, seed=seed, seconds=seconds)
        server.destroy()
        shutil.rmtree(directory)
        outcomes.append(outcome)
        print(f"seed {seed} pg{version}: {outcome}", flush=True)
    # At its end each hands all tables over, in peace.
    in_peace = len(outcomes) * len(journal.TABLES)
    there = sum(outcome.there for outcome in outcomes) - in_peace
    back = sum(outcome.back for outcome in outcomes)
    print(f"{len(outcomes)} seeds: {there} hand-overs while writers were at work, {back} back")
    assert min(there, back) >= len(outcomes) // 4, "too few hand-overs to prove anything"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else SECONDS)
