"""Hand-overs under many writers that read and then write, with transactions open across each step:
nothing is missing, nothing is doubled, and none of the writers is harmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from tests.capture.hybrid.stage import Stage
from tests.oracle import journal
from tests.server import Database, ServerFactory

WRITERS = 200
PAUSE_S = 6.0
"""So that their transactions wait for each other and for us, not for a core."""


@pytest.fixture
def crowded(postgres_server: ServerFactory) -> Iterator[Database]:
    """A database that so many can write at once."""
    server = postgres_server({"max_connections": str(WRITERS + 50)})
    with server.database() as fresh:
        yield fresh


def test_f075_two_hundred_writers_across_every_step_are_neither_lost_nor_killed(
    crowded: Database, tmp_path: Path
) -> None:
    stage = Stage(crowded, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    with stage.writing(WRITERS, is_strict=True, pause_s=PAUSE_S):
        stage.live_until("auto", "WAL")
        stage.live_until("trigger", "TRIGGER")
        stage.live_until("auto", "WAL")
    stage.settle("auto")


def test_f075_a_barrier_that_writers_do_not_let_through_falls_back_and_harms_none_of_them(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path, lock_timeout_ms=100, transition_timeout_s=3.0)
    stage.live_until("trigger", "TRIGGER")
    with stage.writing(is_strict=True), database.connect() as holder, holder.transaction():
        for table in journal.TABLES:
            name = sql.Identifier(journal.SCHEMA, table)
            holder.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(name))
        stage.live_until_given_up("auto")
    stage.settle("auto")


def test_f075_a_transaction_open_for_the_whole_hand_over_is_captured_whole(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    note = "INSERT INTO journal.changes VALUES ('plain', %s, 0, 'I')"
    with database.connect() as reader, database.connect() as writer:
        # Whatever the session says, triggers that are enabled always are in force.
        writer.execute("SET session_replication_role = replica")
        writer.execute("INSERT INTO shop.plain VALUES (9, 0, 'f078')")
        writer.execute(note, [9])
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
