"""Capture is killed at every step of a hand-over, under writers; the next one goes on or undoes it.

In the end the log holds each change that was committed, once, and those of a row in their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tailrace.capture import Settings
from tailrace.storage import FileStore
from tests.capture.running import CaptureProcess, hybrid, process, settings
from tests.oracle import journal
from tests.oracle.run import EAGER, SMALL
from tests.oracle.verdict import settle
from tests.server import Database, ServerFactory

PATIENCE_S = 120.0
WRITERS = 3
ALL = len(journal.TABLES)


@dataclass
class Stage:
    """A source, its log, and the lives of capture on it."""

    database: Database
    directory: Path

    def __post_init__(self) -> None:
        self.store = FileStore(self.directory / "log")
        with self.database.connect() as connection:
            journal.make(connection)

    def told(self, mode: str) -> Settings:
        """Tables in this mode; a slot may be there whatever it is."""
        tables = [f"{journal.SCHEMA}.{table}" for table in journal.TABLES]
        own = dict.fromkeys(tables, mode)
        return settings(
            self.database.dsn,
            *tables,
            limits=SMALL,
            merge=EAGER,
            sender_timeout_s=3,
            hybrid=hybrid("auto", tables=own, lock_timeout_ms=900),
        )

    def live_until(self, mode: str, state: str) -> None:
        """Capture until every table is in this state; then it is killed."""
        with process(self.told(mode), self.store.url, self.directory / "said") as capture:
            self.wait_for(capture, state)

    def die_at(self, mode: str, failpoint: str) -> None:
        """Capture until it dies at a step."""
        output = self.directory / "said"
        with process(self.told(mode), self.store.url, output, failpoint=failpoint) as capture:
            deadline = time.monotonic() + PATIENCE_S
            while capture.is_running:
                assert time.monotonic() < deadline, f"{failpoint} never came\n{capture.said()}"
                time.sleep(0.02)
            assert capture.wait() == 137, capture.said()

    def wait_for(self, capture: CaptureProcess, state: str) -> None:
        query = "SELECT count(*) FROM tailrace.change_tracking WHERE cdc_mode = %s"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert capture.is_running, capture.said()
            assert time.monotonic() < deadline, f"never {state}\n{capture.said()}"
            with self.database.connect() as connection:
                try:
                    if connection.execute(query, [state]).fetchone() == (ALL,):
                        return
                except psycopg.errors.UndefinedTable:
                    pass
            time.sleep(0.05)

    def writing(self) -> journal.Journaling:
        """Writers with transactions open across every step."""
        return journal.Journaling(self.database.connect, seed=1, count=WRITERS)

    def settle(self, mode: str) -> None:
        """At rest, the log comes to hold just what was committed."""
        with (
            process(self.told(mode), self.store.url, self.directory / "said") as capture,
            self.database.connect() as connection,
        ):
            settle(lambda: journal.problems(self.store, connection), patience_s=PATIENCE_S)
            assert capture.terminate() == 0, capture.said()


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Stage:
    """On a server whose WAL can be had."""
    return Stage(database, tmp_path)


@pytest.mark.parametrize(
    "step",
    [
        "handover.after_transitioning",
        "handover.before_barrier",
        "membership.after_record",
        "handover.before_commit",
        "handover.after_barrier",
        "handover.after_barrier:3",
        "triggers.after_drop",
    ],
)
def test_f076_killed_on_the_way_to_the_wal(stage: Stage, step: str) -> None:
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        stage.die_at("auto", step)
        stage.live_until("auto", "WAL")
    stage.settle("auto")


@pytest.mark.parametrize(
    "step",
    [
        "handover.before_back",
        "triggers.after_buffer",
        "handover.before_commit",
        "handover.after_back",
        "handover.after_back:2",
    ],
)
def test_f076_killed_on_the_way_back(stage: Stage, step: str) -> None:
    stage.live_until("trigger", "TRIGGER")
    stage.live_until("auto", "WAL")
    with stage.writing():
        stage.die_at("trigger", step)
        stage.live_until("trigger", "TRIGGER")
    stage.settle("trigger")


@pytest.mark.parametrize(
    "step",
    ["control.after_migration", "triggers.before_commit", "intake.after_commit"],
)
def test_f081_killed_while_triggers_are_made(stage: Stage, step: str) -> None:
    stage.die_at("trigger", step)
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        stage.live_until("auto", "WAL")
    stage.settle("auto")


def test_f081_killed_before_rows_that_the_log_has_are_deleted(stage: Stage) -> None:
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        stage.die_at("trigger", "mark.before_delete")
        stage.live_until("trigger", "TRIGGER")
    stage.settle("trigger")


@pytest.fixture
def plain_stage(postgres_server: ServerFactory, tmp_path: Path) -> Iterator[Stage]:
    """On a server whose WAL cannot be decoded."""
    server = postgres_server({"wal_level": "replica"})
    with server.database() as database:
        yield Stage(database, tmp_path)


@pytest.mark.parametrize(
    "step",
    [
        "drain.before_message",
        "drain.after_message:3",
        "seal.before_put:4",
        "seal.after_put:4",
        "drain.after_append:2",
    ],
)
def test_f081_killed_while_it_drains(plain_stage: Stage, step: str) -> None:
    plain_stage.live_until("auto", "TRIGGER")
    with plain_stage.writing():
        plain_stage.die_at("auto", step)
    plain_stage.settle("auto")


@pytest.mark.parametrize("step", ["slot.after_made", "slot.before_begun", "slot.after_begun"])
def test_f076_killed_while_a_slot_begins(plain_stage: Stage, step: str) -> None:
    plain_stage.live_until("auto", "TRIGGER")
    server = plain_stage.database.server
    server.settings["wal_level"] = "logical"
    server.restart()
    with plain_stage.writing():
        plain_stage.die_at("auto", step)
        plain_stage.live_until("auto", "WAL")
    plain_stage.settle("auto")
