"""One run: writers with a seed, capture that is killed now and then, and the verdict."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from tailrace.bases import AutomaticBases, BaseSettings, BaseTaker
from tailrace.bases.runner import ThreadRunner
from tailrace.log.merge import MergePolicy
from tailrace.storage import FileStore, Store, open_store
from tests.capture.running import FAST, NAMES, process, settings
from tests.oracle.commands import Commands
from tests.oracle.tables import AT_FIRST, LATE, SCHEMA
from tests.oracle.verdict import lake_problems, log_problems, settle
from tests.oracle.workload import Workload
from tests.server import Database

LIFE_S: Final = 8.0
"""How long capture lives until it is killed, on average."""

KILLS_MIN: Final = 2
COMMITTED_MIN: Final = 100
"""However slow the machine is, a run is no shorter than that."""

SMALL: Final = replace(FAST, seal_bytes=64_000, part_bytes=64_000, pending_bytes_max=1_000_000)
"""So that a modest transaction already goes through parts."""

EAGER: Final = MergePolicy(segment_count_min=3, grace_s=0)


PATIENCE_S: Final = 240.0
"""What is not there by then, with the source at rest, is lost."""

EVERY: Final = (*AT_FIRST, LATE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has passed."""

    committed: int
    refused: int
    kills: int


def run_log(database: Database, directory: Path, *, seed: int, seconds: float) -> Outcome:
    """The log, folded, must be the source, though capture is killed: with tables that have rows
    before anybody captures, one that comes late, and what Postgres does not stream.
    """
    store = FileStore(directory / "log")
    output = directory / "said"
    random = Random(seed)
    workload = Workload(database.connect, seed, unstreamed=True)
    told = settings(database.dsn, f"{SCHEMA}.*", limits=SMALL, merge=EAGER, sender_timeout_s=3)
    kills = 0
    with _bases(database.dsn, store), workload:
        end = time.monotonic() + seconds
        while time.monotonic() < end or kills < KILLS_MIN or workload.committed < COMMITTED_MIN:
            with process(told, store.url, output) as capture:
                if kills == 1:
                    workload.make_late_table(row_count=1000)
                time.sleep(LIFE_S * random.uniform(0.5, 1.5))
                workload.check()
                assert capture.is_running, capture.said()
            kills += 1
    with (
        _bases(database.dsn, store),
        process(told, store.url, output) as capture,
        database.connect() as connection,
    ):
        capture.wait_caught_up(connection)
        settle(lambda: log_problems(store, connection, EVERY), patience_s=PATIENCE_S)
        assert capture.terminate() == 0, capture.said()
    return Outcome(workload.committed, workload.refused, kills)


def _bases(dsn: str, store: Store) -> AutomaticBases:
    """Bases for all tables that want one, read by threads of this process."""

    def taker(dsn: str, stop: threading.Event) -> BaseTaker:
        return BaseTaker(BaseSettings(dsn, NAMES), store, ThreadRunner(2), stop=stop)

    return AutomaticBases(store, NAMES, dsn=lambda: dsn, taker=taker)


def run_everything(
    database: Database, directory: Path, *, seed: int, seconds: float, life_s: float
) -> Outcome:
    """The lake as well, in every mode, though capture and pipeline are killed."""
    random = Random(seed)
    workload = Workload(database.connect, seed, unstreamed=True)
    commands = Commands(directory, database.dsn, random)
    try:
        with workload:
            end = time.monotonic() + seconds
            commands.start()
            time.sleep(seconds / 3)
            workload.make_late_table(row_count=1000)
            while time.monotonic() < end or workload.committed < COMMITTED_MIN:
                commands.kill_one()
                commands.start()
                time.sleep(life_s * random.uniform(0.5, 1.5))
                workload.check()
                commands.check()
        with database.connect() as connection:

            def problems() -> list[str]:
                commands.check()
                lake = lake_problems(commands.lakes, connection, EVERY)
                return lake or log_problems(open_store(commands.log_url), connection, EVERY)

            try:
                settle(problems, patience_s=PATIENCE_S)
            except AssertionError as error:
                found = log_problems(open_store(commands.log_url), connection, EVERY)
                log = f"the log has {len(found)} lines of problems"
                raise AssertionError(f"{error}\n{log}\n{commands.last_words()}") from None
    finally:
        commands.stop()
    return Outcome(workload.committed, workload.refused, commands.kills)
