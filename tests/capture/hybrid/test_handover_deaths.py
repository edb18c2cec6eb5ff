"""Capture is killed at every step of a hand-over, under writers; the next one goes on or undoes it.

In the end the log holds each change that was committed, once, and those of a row in their order.
Each test is one source whose capture dies again and again, at one step after the other.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from psycopg import sql

from tailrace.postgres.publication import fingerprint
from tailrace.postgres.session import connect
from tailrace.postgres.slot import drop_slot, read_slot
from tests.bases.taking import take
from tests.capture.hybrid.stage import ALL, SLOTLESS, Stage
from tests.capture.running import NAMES
from tests.oracle import journal
from tests.server import Database, ServerFactory

TO_THE_WAL = (
    "handover.after_transitioning",
    "handover.before_barrier",
    "membership.after_record",
    "handover.before_commit",
    "handover.after_barrier",
    # Now that one table comes from the WAL and the others from triggers.
    "handover.before_commit",
    "handover.after_barrier:2",
    "triggers.after_drop",
)
BACK = (
    "handover.before_back",
    "triggers.after_buffer",
    "handover.before_commit",
    "handover.after_back",
    "handover.before_commit",
    "handover.after_back:2",
)

DRAIN = (
    "drain.before_message",
    "drain.after_message:3",
    "seal.before_put:4",
    "seal.after_put:4",
    "drain.after_append:2",
)
SLOT_BEGINS = ("slot.after_made", "slot.before_begun", "slot.after_begun")
"""The steps of hand-overs, of a drain and of the beginning of a slot, in the order in which they
can be met one after the other.
"""


def test_f076_killed_at_every_step_to_triggers_and_from_them_to_the_wal(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path)
    # While triggers are made; the tables are empty, so that the log will hold every change.
    stage.die_at(
        "trigger",
        *("control.after_migration", "triggers.before_commit", "intake.after_commit"),
        "intake.before_empty_base",
    )
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        stage.die_at("auto", *TO_THE_WAL)
        stage.live_until("auto", "WAL")
    stage.settle("auto")


def test_f076_killed_at_every_step_of_a_comparison_the_next_one_compares_anew(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path, shadow_s=0.1)
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        stage.die_at(
            "auto",
            *("shadow.after_publication", "shadow.after_made", "shadow.after_look"),
            "shadow.before_close",
        )
        stage.live_until("auto", "WAL")
    stage.settle("auto")
    with connect(database.dsn) as connection:
        assert fingerprint(connection, NAMES.shadow) is None
        query = (
            "SELECT FROM pg_replication_slots WHERE slot_name LIKE 'tailrace@_shadow%' ESCAPE '@'"
        )
        assert connection.execute(query).fetchall() == []


def test_f076_killed_at_every_step_from_the_wal_back_to_triggers(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    stage.live_until("auto", "WAL")
    with stage.writing():
        stage.die_at("trigger", *BACK)
        stage.live_until("trigger", "TRIGGER")
        # Rows that the log has are still in the buffers.
        stage.die_at("trigger", "mark.before_delete")
    stage.settle("trigger")


def test_f081_killed_at_every_step_of_the_end_of_a_slot(database: Database, tmp_path: Path) -> None:
    stage = Stage(database, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    stage.live_until("auto", "WAL")
    with stage.writing():
        stage.die_at(SLOTLESS, "slot.before_end")
        with connect(database.dsn) as connection:
            assert read_slot(connection, NAMES.slot) is not None
        stage.die_at(SLOTLESS, "slot.after_end")
        with connect(database.dsn) as connection:
            assert read_slot(connection, NAMES.slot) is None
    stage.settle(SLOTLESS)


def test_f081_killed_at_every_step_of_drains_and_while_a_slot_begins(
    postgres_server: ServerFactory, tmp_path: Path
) -> None:
    server = postgres_server({"wal_level": "replica"})
    with server.database() as database:
        stage = Stage(database, tmp_path)
        stage.die_at("auto", "drain.after_intent", "drain.after_genesis")
        stage.live_until("auto", "TRIGGER")
        with stage.writing():
            stage.die_at("auto", *DRAIN)
            with ThreadPoolExecutor() as pool:
                taken = pool.submit(take, database.dsn, stage.store, *stage.oids())
                stage.die_at("auto", "drain.after_answer")
                # Whoever was lent the snapshot goes on with it or asks the next leader.
                stage.live_while("auto", taken.done)
            assert [result.error for result in taken.result()] == [None] * ALL
            server.settings["wal_level"] = "logical"
            server.restart()
            stage.die_at("auto", *SLOT_BEGINS)
            stage.live_until("auto", "WAL")
        stage.settle("auto")
        # The slot is lost, and there cannot be another; what is written until triggers are there
        # is in the bases that are asked for.
        with connect(database.dsn) as connection:
            drop_slot(connection, NAMES.slot)
        server.settings["wal_level"] = "replica"
        server.restart()
        _write_unseen(database, -1)
        stage.die_at("auto", "slot.after_let_go")
        _write_unseen(database, -2)
        stage.live_until("auto", "TRIGGER")
        stage.settle_with_bases("auto")


def test_f075_f081_killed_when_a_hand_over_has_fallen_back_the_next_one_begins_it_anew(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path, lock_timeout_ms=100, transition_timeout_s=0.5)
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        with database.connect() as holder, holder.transaction():
            for table in journal.TABLES:
                name = sql.Identifier(journal.SCHEMA, table)
                holder.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(name))
            stage.die_at("auto", "handover.after_fall_back")
        stage.lock_timeout_ms, stage.transition_timeout_s = 900, 300.0
        stage.live_until("auto", "WAL")
    stage.settle("auto")


def test_f078_f081_killed_when_triggers_were_put_back_the_gap_is_closed_by_a_base(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    with database.connect() as connection:
        connection.execute("ALTER TABLE shop.plain DISABLE TRIGGER ALL")
    _write_unseen(database, -1)
    stage.die_at("trigger", "upkeep.after_put_back")
    with stage.writing():
        stage.live_until("trigger", "TRIGGER")
    # What was written since the triggers are back is in the log itself.
    stage.settle("trigger")
    stage.settle_with_bases("trigger")


def _write_unseen(database: Database, key: int) -> None:
    """A row that neither triggers nor a slot will tell of, and the journal does not either."""
    with database.connect() as connection:
        connection.execute("INSERT INTO shop.plain VALUES (%s, 0, 'unseen')", [key])
