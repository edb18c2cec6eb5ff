"""What captures a table is put on record as it is, whoever comes late."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from tailrace.capture.hybrid.handover import Handover
from tailrace.capture.hybrid.on_record import Captured, OnRecord, Task
from tailrace.capture.roll import rolls_of
from tailrace.capture.watch import keep_triggers
from tailrace.control.schema import migrate
from tailrace.control.tracking import Mode, set_mode, track
from tailrace.errors import SourceError
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection, connect
from tailrace.storage import FileStore
from tests.capture.hybrid.test_handover import modes
from tests.capture.hybrid.test_two_leaders import no_shadow, take_up
from tests.capture.running import (
    NAMES,
    PATIENCE_S,
    Running,
    hybrid,
    settings,
    wait_until,
)
from tests.capture.tracked import oid_of
from tests.server import Database

pytestmark = pytest.mark.usefixtures("quickly")


def is_waiting(source: psycopg.Connection, conn: Connection) -> bool:
    """For somebody's lock."""
    query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    return source.execute(query, [conn.info.backend_pid]).fetchone() == (True,)


@pytest.mark.parametrize("is_on_record", [False, True])
def test_f082_a_table_that_goes_back_while_its_row_is_waited_for_is_not_from_the_wal_on_record(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    is_on_record: bool,
) -> None:
    """A leader that came late is about to commit it, his lock is lost."""
    take_up(database, source, store, "WAL")
    migrate(conn)
    (table,), (whole, _) = tables_matching(conn, ["public.t"]), rolls_of(NAMES)
    if is_on_record:
        track(source, table, source=NAMES.slot, mode=Mode.TRIGGER)
    selection, rules = Selection(["public.t"]), hybrid("auto")
    with (
        closing(LockSession(database.dsn)) as session,
        connect(database.dsn) as late,
        ThreadPoolExecutor() as pool,
    ):
        assert session.try_lock(NAMES.slot)
        with late.transaction():
            late.execute("ALTER PUBLICATION tailrace_main DROP TABLE public.t")
            track(late, table, source=NAMES.slot, mode=Mode.TRIGGER)
            set_mode(late, table.oid, Mode.TRIGGER, source=NAMES.slot)
            if is_on_record:
                handover = Handover(store, NAMES, session.pid, no_shadow)
                done: Future[object] = pool.submit(handover.put_right, conn, table, whole)
            else:
                pid = session.pid
                task = Task(database.dsn, NAMES, selection, rules, leader_pid=pid, has_slot=True)
                seen = Captured({table.oid: whole}, {})
                done = pool.submit(OnRecord(task).put, conn, seen)
            wait_until(lambda: is_waiting(source, conn))
        if is_on_record:
            with pytest.raises(SourceError, match="has gone back to triggers by now"):
                done.result(PATIENCE_S)
        else:
            done.result(PATIENCE_S)
    assert modes(source) == {"t": "TRIGGER"}


def test_f078_triggers_that_are_off_hold_up_the_barrier_though_they_were_off_at_the_last_look(
    database: Database, source: psycopg.Connection, store: FileStore, conn: Connection
) -> None:
    take_up(database, source, store, "TRIGGER")
    source.execute("ALTER TABLE t DISABLE TRIGGER ALL")
    (table,), (whole, _) = tables_matching(conn, ["public.t"]), rolls_of(NAMES)
    keep_triggers(conn, store, table.oid)
    with closing(LockSession(database.dsn)) as session:
        assert session.try_lock(NAMES.slot)
        handover = Handover(store, NAMES, session.pid, no_shadow)
        with pytest.raises(SourceError, match="cannot be handed over"):
            handover.pass_barrier(conn, table, hybrid("auto").rules, whole)
    assert modes(source) == {"t": "TRIGGER"}


def test_a_published_table_is_put_on_record_as_it_is(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    take_up(database, source, store, "TRIGGER")
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": Mode.WAL})
        for mode in (Mode.TRANSITIONING, Mode.TRIGGER):
            # As one would have set it who had asked just before it lost the lock.
            set_mode(source, oid_of(source, "public.t"), mode, source=NAMES.slot)
            capture.wait_until(lambda: modes(source) == {"t": Mode.WAL})
        query = "SELECT publication_name, slot_name FROM tailrace.change_tracking"
        assert source.execute(query).fetchone() == (NAMES.publication, NAMES.slot)


@pytest.mark.parametrize("mode", [Mode.TRANSITIONING, Mode.TRIGGER])
def test_a_published_table_goes_back_from_the_wal_whatever_is_on_record(
    database: Database, source: psycopg.Connection, store: FileStore, mode: Mode
) -> None:
    take_up(database, source, store, "TRIGGER")
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": Mode.WAL})
    set_mode(source, oid_of(source, "public.t"), mode, source=NAMES.slot)
    source.execute("UPDATE tailrace.change_tracking SET wal_until = NULL")
    take_up(database, source, store, "TRIGGER")
    # Without it a slot that is lost by now would take changes along, and nobody would know.
    query = "SELECT cdc_mode, wal_until IS NULL FROM tailrace.change_tracking"
    assert source.execute(query).fetchone() == ("TRIGGER", False)
