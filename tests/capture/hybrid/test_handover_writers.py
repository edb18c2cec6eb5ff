"""Hand-overs under many writers that read and then write, with transactions open across each step:
nothing is missing, nothing is doubled, and none of the writers is harmed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.hybrid.test_handover_deaths import Stage
from tests.oracle import journal
from tests.server import Database, ServerFactory

WRITERS = int(os.environ.get("WRITERS", "30"))


@pytest.fixture(params=[18, 16], ids=lambda version: f"pg{version}")
def busy(request: pytest.FixtureRequest, postgres_server: ServerFactory) -> Iterator[Database]:
    """A database that many can write."""
    server = postgres_server({"max_connections": "300"}, version=request.param)
    with server.database() as fresh:
        yield fresh


def test_f075_writers_across_every_step_are_neither_lost_nor_killed(
    busy: Database, tmp_path: Path
) -> None:
    stage = Stage(busy, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    with journal.Journaling(busy.connect, seed=1, count=WRITERS, is_strict=True):
        stage.live_until("auto", "WAL")
        stage.live_until("trigger", "TRIGGER")
        stage.live_until("auto", "WAL")
    stage.settle("auto")


def test_f075_a_transaction_open_for_the_whole_hand_over_is_captured_whole(
    busy: Database, tmp_path: Path
) -> None:
    stage = Stage(busy, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    note = "INSERT INTO journal.changes VALUES ('plain', %s, 0, 'I')"
    with busy.connect() as reader, busy.connect() as writer:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM shop.plain")
        writer.execute("BEGIN")
        writer.execute("SELECT count(*) FROM shop.plain")
        stage.live_until("auto", "WAL")
        # One that has read before, and one whose snapshot is from before: both write only now.
        for number, session in enumerate((reader, writer)):
            session.execute("INSERT INTO shop.plain VALUES (%s, 0, 'late')", [number])
            session.execute(note, [number])
            session.execute("COMMIT")
    stage.settle("auto")


def test_f078_a_session_in_replica_role_is_captured(busy: Database, tmp_path: Path) -> None:
    stage = Stage(busy, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    with busy.connect() as writer:
        writer.execute("SET session_replication_role = replica")
        writer.execute("INSERT INTO shop.plain VALUES (1, 0, 'replica')")
        writer.execute("INSERT INTO journal.changes VALUES ('plain', 1, 0, 'I')")
    stage.settle("auto")
