"""Capture is killed at every step of a hand-over, under writers; the next one goes on or undoes it.

In the end the log holds each change that was committed, once, and those of a row in their order.
Each test is one source whose capture dies again and again, at one step after the other.
"""

from __future__ import annotations

from pathlib import Path

from tests.capture.hybrid.stage import Stage
from tests.server import Database, ServerFactory


def test_f076_killed_at_every_step_to_triggers_and_from_them_to_the_wal(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path)
    # While triggers are made; the tables are empty, so that the log will hold every change.
    stage.die_at(
        "trigger", "control.after_migration", "triggers.before_commit", "intake.after_commit"
    )
    stage.live_until("trigger", "TRIGGER")
    with stage.writing():
        stage.die_at(
            "auto",
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
        stage.live_until("auto", "WAL")
    stage.settle("auto")


def test_f076_killed_at_every_step_from_the_wal_back_to_triggers(
    database: Database, tmp_path: Path
) -> None:
    stage = Stage(database, tmp_path)
    stage.live_until("trigger", "TRIGGER")
    stage.live_until("auto", "WAL")
    with stage.writing():
        stage.die_at(
            "trigger",
            "handover.before_back",
            "triggers.after_buffer",
            "handover.before_commit",
            "handover.after_back",
            "handover.before_commit",
            "handover.after_back:2",
        )
        stage.live_until("trigger", "TRIGGER")
        # Rows that the log has are still in the buffers.
        stage.die_at("trigger", "mark.before_delete")
    stage.settle("trigger")


def test_f081_killed_at_every_step_of_drains_and_while_a_slot_begins(
    postgres_server: ServerFactory, tmp_path: Path
) -> None:
    server = postgres_server({"wal_level": "replica"})
    with server.database() as database:
        stage = Stage(database, tmp_path)
        stage.live_until("auto", "TRIGGER")
        with stage.writing():
            stage.die_at(
                "auto",
                "drain.before_message",
                "drain.after_message:3",
                "seal.before_put:4",
                "seal.after_put:4",
                "drain.after_append:2",
            )
            server.settings["wal_level"] = "logical"
            server.restart()
            stage.die_at("auto", "slot.after_made", "slot.before_begun", "slot.after_begun")
            stage.live_until("auto", "WAL")
        stage.settle("auto")
