"""A table has one row, one mode and as many readers as there are streams."""

from __future__ import annotations

import json

import psycopg
import pytest

from tailrace.control.tracking import (
    TRANSITION_CHANNEL,
    Mode,
    claim,
    describe,
    forget,
    read_tracked,
    set_confirmed,
    set_error,
    set_mode,
    track,
)
from tailrace.errors import SourceError
from tailrace.model import Lsn
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.session import Connection
from tailrace.postgres.triggers import drop_buffer, drop_triggers, install_triggers
from tests.buffered import table_of

SOURCE = "tailrace_main"


@pytest.fixture
def table(app: Connection, controlled: Connection) -> TableInfo:
    """A table that is tracked in mode TRIGGER."""
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = table_of(controlled, "app.t")
    track(controlled, found, source=SOURCE, mode=Mode.TRIGGER)
    return found


def test_each_transition_is_told_with_both_modes(
    controlled: Connection, admin: Connection, table: TableInfo
) -> None:
    admin.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(TRANSITION_CHANNEL)))
    for mode in (Mode.TRANSITIONING, Mode.TRANSITIONING, Mode.WAL):
        set_mode(controlled, table.oid, mode, source=SOURCE, slot=SOURCE)
    told = [json.loads(note.payload) for note in admin.notifies(timeout=120, stop_after=2)]
    assert told == [
        {"table": "app.t", "old_mode": "TRIGGER", "new_mode": "TRANSITIONING", "slot": SOURCE},
        {"table": "app.t", "old_mode": "TRANSITIONING", "new_mode": "WAL", "slot": SOURCE},
    ]


def test_a_transition_that_is_rolled_back_is_not_told(
    controlled: Connection, admin: Connection, table: TableInfo
) -> None:
    admin.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(TRANSITION_CHANNEL)))
    with controlled.transaction(force_rollback=True):
        set_mode(controlled, table.oid, Mode.WAL, source=SOURCE)
    set_mode(controlled, table.oid, Mode.TRANSITIONING, source=SOURCE)
    (told,) = [json.loads(note.payload) for note in admin.notifies(timeout=120, stop_after=1)]
    assert told["new_mode"] == "TRANSITIONING"


def test_a_mode_that_is_none_is_refused(controlled: Connection, table: TableInfo) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        controlled.execute("UPDATE tailrace.change_tracking SET cdc_mode = 'LATER'")


def test_a_shared_table_has_one_row_that_names_its_streams(
    controlled: Connection, table: TableInfo
) -> None:
    track(controlled, table, source=SOURCE, mode=Mode.WAL)
    describe(controlled, table, ["lake", "search"], source=SOURCE)
    (tracked,) = read_tracked(controlled, SOURCE).values()
    assert (tracked.tracked_by, tracked.mode) == (("lake", "search"), Mode.TRIGGER)
    forget(controlled, table.oid, source=SOURCE)
    assert read_tracked(controlled, SOURCE) == {}


def test_a_table_has_one_source(controlled: Connection, table: TableInfo) -> None:
    assert not track(controlled, table, source="tailrace_other", mode=Mode.WAL)
    with pytest.raises(SourceError, match="another source"):
        claim(controlled, table, source="tailrace_other", mode=Mode.TRIGGER)
    assert read_tracked(controlled, "tailrace_other") == {}


def test_triggers_claim_a_table_that_another_source_has_from_the_wal_alone(
    controlled: Connection, table: TableInfo
) -> None:
    install_triggers(controlled, table, lock_timeout_ms=10_000)
    set_mode(controlled, table.oid, Mode.WAL, source=SOURCE, slot=SOURCE, publication="p")
    # What the other's triggers have left must reach its log first.
    with pytest.raises(SourceError, match="another source"):
        claim(controlled, table, source="tailrace_other", mode=Mode.TRIGGER)
    drop_triggers(controlled, table, lock_timeout_ms=10_000)
    drop_buffer(controlled, table.oid, lock_timeout_ms=10_000)
    claim(controlled, table, source="tailrace_other", mode=Mode.TRIGGER)
    assert read_tracked(controlled, SOURCE) == {}
    assert read_tracked(controlled, "tailrace_other")[table.oid].mode is Mode.TRIGGER


def test_a_row_says_how_far_and_what_is_wrong(controlled: Connection, table: TableInfo) -> None:
    set_confirmed(controlled, Lsn.parse("1/2A"), source=SOURCE)
    set_error(controlled, table.oid, "the lock was not won", source=SOURCE)
    tracked = read_tracked(controlled, SOURCE)[table.oid]
    assert tracked.confirmed == Lsn.parse("1/2A")
    assert tracked.last_error == "the lock was not won"
    set_mode(controlled, table.oid, Mode.TRANSITIONING, source=SOURCE, slot=SOURCE)
    began = read_tracked(controlled, SOURCE)[table.oid]
    assert (began.last_error, began.handed_over_at) == (None, None)
    assert began.transition_started_at is not None
    set_mode(controlled, table.oid, Mode.WAL, source=SOURCE, slot=SOURCE, publication="p")
    done = read_tracked(controlled, SOURCE)[table.oid]
    assert (done.slot, done.publication, done.transition_started_at) == (SOURCE, "p", None)
    assert done.handed_over_at is not None


def test_a_source_without_the_schema_tracks_nothing(capture: Connection) -> None:
    assert read_tracked(capture, SOURCE) == {}
