"""One run: writers with a seed, capture that is killed now and then, and the verdict."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from tailrace.log.bases import newest_positions
from tailrace.log.merge import MergePolicy
from tailrace.storage import FileStore
from tests.capture.running import FAST, process, settings, wait_until
from tests.oracle.commands import Commands
from tests.oracle.lake import MODES, lake_rows
from tests.oracle.tables import AT_FIRST, LATE
from tests.oracle.verdict import assert_log_is_source, differences, source_table
from tests.oracle.workload import Workload
from tests.server import Database

LIFE_S: Final = 8.0
"""How long capture lives until it is killed, on average."""

SMALL: Final = replace(FAST, seal_bytes=64_000, part_bytes=64_000, pending_bytes_max=1_000_000)
"""So that a modest transaction already goes through parts."""

EAGER: Final = MergePolicy(segment_count_min=3, grace_s=0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has passed: what was committed, and the rows of each table compared."""

    committed: int
    refused: int
    kills: int
    rows: dict[str, int]


def run_log(database: Database, directory: Path, *, seed: int, seconds: float) -> Outcome:
    """The log, folded, must be the source."""
    store = FileStore(directory / "log")
    output = directory / "said"
    random = Random(seed)
    workload = Workload(database.connect, seed, unstreamed=False)
    told = settings(database.dsn, "work.*", limits=SMALL, merge=EAGER, sender_timeout_s=3)
    with process(told, store.url, output) as capture:
        # Empty tables have their base at once.
        capture.wait_until(lambda: len(newest_positions(store)) == len(AT_FIRST))
    kills = 0
    with workload:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with process(told, store.url, output) as capture:
                if kills == 1:
                    workload.make_late_table(row_count=100)
                time.sleep(min(left, LIFE_S * random.uniform(0.5, 1.5)))
                workload.check()
                assert capture.is_running, capture.said()
            kills += 1
    with process(told, store.url, output) as capture, database.connect() as connection:
        capture.wait_caught_up(connection)
        assert capture.terminate() == 0, capture.said()
        rows = assert_log_is_source(store, connection, AT_FIRST)
    assert rows.keys() == {table.name for table in AT_FIRST}, "a table waits for a base"
    refused = sum(writer.refused for writer in workload.writers)
    return Outcome(workload.committed, refused, kills, rows)


def run_everything(
    database: Database, directory: Path, *, seed: int, seconds: float, life_s: float
) -> Outcome:
    """The log and the lake, in every mode, must be the source: tables with rows before anybody
    captures, tables that come late, DDL and partitions that Postgres does not stream.
    """
    random = Random(seed)
    workload = Workload(database.connect, seed, unstreamed=True)
    commands = Commands(directory, database.dsn, random)
    try:
        with workload:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                commands.start()
                time.sleep(min(left, life_s * random.uniform(0.5, 1.5)))
                workload.check()
                commands.check()
                if commands.kills == 1:
                    workload.make_late_table(row_count=1000)
                commands.kill_one()
        commands.start()
        with database.connect() as connection:
            problems = _Problems(commands, connection)
            wait_until(problems.are_gone, patience_s=PATIENCE_S)
            rows = assert_log_is_source(open_store(commands.log_url), connection, problems.tables)
    finally:
        commands.stop()
    refused = sum(writer.refused for writer in workload.writers)
    return Outcome(workload.committed, refused, commands.kills, rows)
