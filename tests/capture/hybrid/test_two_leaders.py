"""A leader that has lost its lock and does not know it yet changes nothing any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tailrace.capture import Metrics
from tailrace.capture.attach import attach
from tailrace.capture.drains.attach import attach_drains
from tailrace.capture.drains.drain import Drainer
from tailrace.capture.drains.leader import DrainLeader
from tailrace.capture.drains.slot_begin import begin_slot
from tailrace.capture.hybrid.handover import Handover
from tailrace.capture.hybrid.on_record import Captured, OnRecord, Task
from tailrace.capture.hybrid.shadow import Shadow
from tailrace.capture.hybrid.tables import HybridTables
from tailrace.capture.hybrid.trouble import Trouble
from tailrace.capture.hybrid.upkeep import TriggerUpkeep
from tailrace.capture.hybrid.wanting import Means, Wanted
from tailrace.capture.leader import Leader
from tailrace.capture.origin import Attachment
from tailrace.capture.roll import Roll, check_membership, remake_publications, rolls_of
from tailrace.capture.slot_end import EndedStream
from tailrace.control.tracking import Mode, Tracked, read_tracked, set_mode
from tailrace.errors import NotLeading, SourceError
from tailrace.log import Header
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.model import Lsn
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import drop_slot, read_slot
from tailrace.postgres.snapshot import Patience
from tailrace.postgres.triggers import drop_triggers
from tailrace.storage import FileStore, Store
from tests.capture.hybrid.test_handover import modes, trigger_states
from tests.capture.running import (
    NAMES,
    PATIENCE_S,
    Running,
    hybrid,
    published,
    settings,
    wait_caught_up,
)
from tests.capture.tracked import buffer_of, oid_of
from tests.server import Database

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture
def late_pid(database: Database) -> Iterator[int]:
    """The backend of one who led until another took the lock."""
    late, leader = LockSession(database.dsn), LockSession(database.dsn)
    assert late.try_lock(NAMES.slot)
    late.unlock(NAMES.slot)
    assert leader.try_lock(NAMES.slot)
    yield late.pid
    late.close()
    leader.close()


def errors(source: psycopg.Connection) -> list[str | None]:
    """What is shown to be wrong with each table."""
    query = "SELECT last_error FROM tailrace.change_tracking ORDER BY table_name"
    return [error for (error,) in source.execute(query).fetchall()]


def take_up(database: Database, source: psycopg.Connection, store: FileStore, mode: str) -> None:
    own = {"public.t": "trigger"} if mode == "TRIGGER" else {}
    with Running(settings(database.dsn, hybrid=hybrid("auto", tables=own)), store) as capture:
        capture.wait_for_stream()
        if mode == "TRIGGER":
            capture.wait_until(lambda: modes(source) == {"t": mode})


def no_shadow(table: TableInfo) -> Shadow:
    raise AssertionError(f"{table.qualified} is not to be compared")


_Step = Callable[[Connection, FileStore, int, TableInfo, Tracked], object]


def _begin(conn: Connection, store: FileStore, pid: int, table: TableInfo, row: Tracked) -> None:
    rules = hybrid("auto").rules
    handover = Handover(store, NAMES, pid, no_shadow)
    handover.advance(conn, table, row, rules, rolls_of(NAMES)[0])


def _stay(conn: Connection, store: FileStore, pid: int, table: TableInfo, row: Tracked) -> None:
    Handover(store, NAMES, pid, no_shadow).call_off(conn, table, "it is a test")


def _tidy(conn: Connection, store: FileStore, pid: int, table: TableInfo, row: Tracked) -> None:
    TriggerUpkeep(store, NAMES, pid).tidy(conn, table)


def _let_go(conn: Connection, store: FileStore, pid: int, table: TableInfo, row: Tracked) -> None:
    TriggerUpkeep(store, NAMES, pid).let_go(conn, row, table)


def _bury(conn: Connection, store: FileStore, pid: int, table: TableInfo, row: Tracked) -> None:
    """As if the table were gone: the buffer alone is left."""
    TriggerUpkeep(store, NAMES, pid).let_go(conn, row, None)


@pytest.mark.parametrize("step", [_begin, _stay, _tidy, _let_go, _bury])
def test_f082_a_late_leader_changes_no_row_and_drops_nothing(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    request: pytest.FixtureRequest,
    step: _Step,
) -> None:
    take_up(database, source, store, "TRIGGER")
    if step is _stay:
        set_mode(source, oid_of(source, "public.t"), Mode.TRANSITIONING, source=NAMES.slot)
    before, kept = modes(source), buffer_of(source, "public.t")
    (table,), (row,) = tables_matching(conn, ["public.t"]), read_tracked(conn, NAMES.slot).values()
    late_pid = request.getfixturevalue("late_pid")
    with pytest.raises(NotLeading):
        step(conn, store, late_pid, table, row)
    assert (modes(source), errors(source)) == (before, [None])
    assert trigger_states(source, "t") == ["A", "A"]
    assert source.execute("SELECT to_regclass(%s) IS NULL", [kept]).fetchone() == (False,)


@pytest.fixture
def leader(database: Database, source: psycopg.Connection, store: FileStore) -> Iterator[int]:
    """The backend of the one who leads, of a source that has `t` by triggers, and a slot."""
    take_up(database, source, store, "TRIGGER")
    with closing(LockSession(database.dsn)) as session:
        assert session.try_lock(NAMES.slot)
        yield session.pid


def test_f082_a_leader_that_loses_its_lock_inside_the_barrier_does_not_pass_it(
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    leader: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (table,), (whole, _) = tables_matching(conn, ["public.t"]), rolls_of(NAMES)

    def hang(name: str) -> None:
        if name == "handover.before_commit":
            source.execute("SELECT pg_terminate_backend(%s, 10000)", [leader])

    monkeypatch.setattr("tailrace.postgres.barrier.failpoint", hang)
    handover = Handover(store, NAMES, leader, no_shadow)
    with pytest.raises(NotLeading):
        handover.pass_barrier(conn, table, hybrid("auto").rules, whole)
    assert modes(source) == {"t": "TRIGGER"}
    assert trigger_states(source, "t") == ["A", "A"]
    assert ("tailrace_main", "t") not in published(source)


def test_f082_triggers_are_not_put_back_on_a_table_that_was_handed_over_since_it_was_looked_at(
    source: psycopg.Connection, store: FileStore, conn: Connection, leader: int
) -> None:
    (table,), (row,) = tables_matching(conn, ["public.t"]), read_tracked(conn, NAMES.slot).values()
    rules, (whole, _) = hybrid("auto").rules, rolls_of(NAMES)
    Handover(store, NAMES, leader, no_shadow).pass_barrier(conn, table, rules, whole)
    with pytest.raises(SourceError, match="was handed over by now"):
        TriggerUpkeep(store, NAMES, leader).mend(conn, table, row, rules)
    assert trigger_states(source, "t") == ["D", "D"]
    assert modes(source) == {"t": "WAL"}
    assert wanted_bases(store, newest_positions(store)) == {}


def test_f082_a_table_that_went_back_since_it_was_looked_at_is_not_put_on_record_as_from_the_wal(
    source: psycopg.Connection, store: FileStore, conn: Connection, leader: int
) -> None:
    """It would be published once more, beside triggers that are in force."""
    (table,), (whole, _) = tables_matching(conn, ["public.t"]), rolls_of(NAMES)
    handover = Handover(store, NAMES, leader, no_shadow)
    with pytest.raises(SourceError, match="has gone back to triggers by now"):
        handover.put_right(conn, table, whole)
    selection, rules = Selection(["public.t"]), hybrid("auto")
    task = Task(source.info.dsn, NAMES, selection, rules, leader_pid=leader, has_slot=True)
    tracked = read_tracked(conn, NAMES.slot)
    OnRecord(task).put(conn, Captured({table.oid: whole}, tracked))
    assert modes(source) == {"t": "TRIGGER"}


@pytest.mark.parametrize("means", [Means.WAL, Means.TRIGGER])
def test_f082_a_table_is_not_taken_up_beside_what_captures_it_since_it_was_looked_at(
    database: Database, source: psycopg.Connection, store: FileStore, conn: Connection, means: Means
) -> None:
    take_up(database, source, store, "TRIGGER" if means is Means.WAL else "WAL")
    (table,), before = tables_matching(conn, ["public.t"]), published(source)
    selection, rules = Selection(["public.t"]), hybrid("auto")
    with closing(LockSession(database.dsn)) as session:
        assert session.try_lock(NAMES.slot)
        task = Task(database.dsn, NAMES, selection, rules, leader_pid=session.pid, has_slot=True)
        refusal = HybridTables(store, task)._new(conn, table, Wanted(means))
    assert refusal is not None and refusal.is_passing
    assert published(source) == before
    assert trigger_states(source, "t") == (["A", "A"] if means is Means.WAL else [])


def test_f082_nothing_is_dropped_of_a_table_that_went_back_since_it_was_looked_at(
    source: psycopg.Connection, store: FileStore, conn: Connection, leader: int
) -> None:
    (table,), kept = tables_matching(conn, ["public.t"]), buffer_of(source, "public.t")
    upkeep = TriggerUpkeep(store, NAMES, leader)
    with pytest.raises(SourceError, match="has gone back to triggers by now"):
        upkeep.tidy(conn, table)
    assert trigger_states(source, "t") == ["A", "A"]
    # As long as his transaction is open, his triggers are not to be seen.
    drop_triggers(conn, table, lock_timeout_ms=200)
    upkeep.tidy(conn, table)
    assert source.execute("SELECT to_regclass(%s) IS NULL", [kept]).fetchone() == (False,)


def test_f082_a_late_leader_lets_go_of_no_slot(
    database: Database, source: psycopg.Connection, store: FileStore, conn: Connection
) -> None:
    take_up(database, source, store, "WAL")
    drop_slot(conn, NAMES.slot)
    before = published(source)
    told = settings(database.dsn, hybrid=hybrid("auto"))
    session = LockSession(database.dsn)
    late = DrainLeader(session, told, store, metrics=Metrics("main"), stop=threading.Event())
    with pytest.raises(NotLeading):
        late.run(is_first=True, on_streaming=lambda: None)
    assert published(source) == before != set()
    assert wanted_bases(store, newest_positions(store)) == {}


def test_f082_a_late_leader_publishes_no_table_and_takes_none_out(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    request: pytest.FixtureRequest,
) -> None:
    take_up(database, source, store, "WAL")
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    late_pid = request.getfixturevalue("late_pid")
    rules, selection = hybrid("auto"), Selection(["public.other"])
    task = Task(database.dsn, NAMES, selection, rules, leader_pid=late_pid, has_slot=True)
    with pytest.raises(NotLeading):
        HybridTables(store, task).look_after(conn, should_go_on=lambda: True)
    assert published(source) == {("tailrace_main", "t")}


@pytest.mark.parametrize("patterns", [["public.*"], ["public.other"]])
def test_f082_the_turn_of_a_late_leader_leaves_no_error_on_record(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    patterns: list[str],
) -> None:
    own = hybrid("auto", tables={"public.t": "trigger"})
    with Running(settings(database.dsn, hybrid=own), store) as capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        late = LockSession(database.dsn)
        selection, rules = Selection(patterns), hybrid("auto")
        task = Task(database.dsn, NAMES, selection, rules, leader_pid=late.pid, has_slot=True)
        with pytest.raises(NotLeading):
            HybridTables(store, task).look_after(conn, should_go_on=lambda: True)
        late.close()
        assert errors(source) == [None]


def test_f082_a_late_leader_shows_no_trouble_and_ends_none(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    request: pytest.FixtureRequest,
) -> None:
    take_up(database, source, store, "TRIGGER")
    oid = oid_of(source, "public.t")
    trouble = Trouble(NAMES.slot, request.getfixturevalue("late_pid"))
    with pytest.raises(NotLeading):
        trouble.say(conn, oid, "public.t", SourceError("it is being written"))
    assert errors(source) == [None]
    set_mode(source, oid, Mode.WAL, source=NAMES.slot, error="seen by the one who leads")
    with pytest.raises(NotLeading):
        trouble.is_over(conn, oid, read_tracked(conn, NAMES.slot)[oid])
    assert errors(source) == ["seen by the one who leads"]


def sender_pid(source: psycopg.Connection) -> int | None:
    """Who streams from the slot."""
    slot = read_slot(source, NAMES.slot)
    assert slot is not None, "the slot is gone"
    return slot.active_pid


def end_leaders(source: psycopg.Connection) -> None:
    """As the server ends the session of one that has not pinged for long."""
    source.execute(
        """SELECT pg_terminate_backend(pid, 10000) FROM pg_locks
            WHERE locktype = 'advisory' AND database =
                  (SELECT oid FROM pg_database WHERE datname = current_database())"""
    )


def test_f082_a_late_leader_that_drains_leaves_the_slot_to_the_one_who_leads(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
    hung, wake, ended = threading.Event(), threading.Event(), threading.Event()

    def check(conn: Connection, store: Store, roll: Roll) -> None:
        if not hung.is_set():
            hung.set()
            assert wake.wait(PATIENCE_S)
        check_membership(conn, store, roll)

    def begin(
        dsn: str, drainer: Drainer, names: SourceNames, patience: Patience, *, leader_pid: int
    ) -> Header:
        try:
            return begin_slot(dsn, drainer, names, patience, leader_pid=leader_pid)
        finally:
            if wake.is_set():
                ended.set()

    monkeypatch.setattr("tailrace.capture.drains.leader.check_membership", check)
    monkeypatch.setattr("tailrace.capture.drains.leader.begin_slot", begin)
    told = settings(database.dsn, hybrid=hybrid("auto"))
    with Running(told, store) as late:
        late.wait_until(hung.is_set)
        end_leaders(source)
        with Running(told, store) as leader:
            leader.wait_until(lambda: modes(source) == {"t": "WAL"})
            leader.wait_until(lambda: sender_pid(source) is not None)
            before = sender_pid(source)
            wake.set()
            late.wait_until(ended.is_set)
            assert sender_pid(source) == before
            source.execute("INSERT INTO t VALUES (1, 'streamed')")
            wait_caught_up(leader, source)
            assert modes(source) == {"t": "WAL"}
    assert wanted_bases(store, newest_positions(store)) == {}


def test_f082_the_end_of_a_slot_leaves_it_to_the_one_who_leads_by_now(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_up(database, source, store, "WAL")
    hung, wake, ended = threading.Event(), threading.Event(), threading.Event()
    end = Leader._end_slot

    def end_late(leader: Leader) -> None:
        leader._connection.close()
        hung.set()
        assert wake.wait(PATIENCE_S)
        try:
            end(leader)
        finally:
            ended.set()

    monkeypatch.setattr(Leader, "_end_slot", end_late)
    with Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as late:
        late.wait_until(hung.is_set)
        with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as leader:
            leader.wait_until(lambda: modes(source) == {"t": "WAL"})
            leader.wait_until(lambda: sender_pid(source) is not None)
            before = sender_pid(source)
            wake.set()
            late.wait_until(ended.is_set)
            assert sender_pid(source) == before
            source.execute("INSERT INTO t VALUES (1, 'streamed')")
            wait_caught_up(leader, source)
            assert modes(source) == {"t": "WAL"}
            assert wanted_bases(store, newest_positions(store)) == {}


@pytest.mark.parametrize("use", ["published", "streamed"])
def test_f082_a_slot_that_was_put_to_use_meanwhile_is_not_ended(
    database: Database, source: psycopg.Connection, store: FileStore, conn: Connection, use: str
) -> None:
    """By one who has led in between, and does not any more."""
    rules = {"public.t": "wal" if use == "published" else "trigger"}
    with Running(settings(database.dsn, hybrid=hybrid("auto", tables=rules)), store) as capture:
        capture.wait_for_stream()
    stream, session = EndedStream(NAMES, 0, 1.0, lambda: None), LockSession(database.dsn)
    with closing(session), closing(ReplicationConnection(database.dsn)) as other:
        if use == "streamed":
            other.start(NAMES.slot, [NAMES.buffers], Lsn(0))
        assert not stream.drop_slot(session)
        assert read_slot(conn, NAMES.slot) is not None


def test_a_slot_ends_though_its_sender_lingers_for_a_moment(
    database: Database, source: psycopg.Connection, store: FileStore, conn: Connection
) -> None:
    take_up(database, source, store, "TRIGGER")
    sender = ReplicationConnection(database.dsn)
    assert sender.try_lock(NAMES.slot)
    sender.start(NAMES.slot, [NAMES.buffers], Lsn(0))
    turns = iter([lambda: None, sender.close])
    stream = EndedStream(NAMES, sender.pid, 10.0, lambda: next(turns, lambda: None)())
    with closing(LockSession(database.dsn)) as session:
        assert stream.drop_slot(session)
    assert read_slot(conn, NAMES.slot) is None


def test_f082_a_late_leader_makes_no_publication_anew(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    conn: Connection,
    request: pytest.FixtureRequest,
) -> None:
    take_up(database, source, store, "WAL")
    late_pid = request.getfixturevalue("late_pid")
    with pytest.raises(NotLeading):
        remake_publications(conn, store, NAMES, [], leader_pid=late_pid)
    assert published(source) == {("tailrace_main", "t")}


@pytest.mark.parametrize("begin", [attach, attach_drains])
def test_f082_who_begins_a_log_late_leaves_the_slot_to_the_one_who_streams(
    conn: Connection,
    database: Database,
    store: FileStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Attachment], object],
) -> None:
    # It has seen that there is no log, and claimed its place, before the other one began.
    monkeypatch.setattr(f"{begin.__module__}.claim", lambda *_: None)
    late = Attachment(conn, FileStore(tmp_path / "late"), NAMES, "late", lambda: None)
    with Running(settings(database.dsn), store) as capture:
        capture.wait_for_stream()
        with pytest.raises(SourceError) as raised:
            begin(late)
        slot = read_slot(conn, NAMES.slot)
    assert raised.value.retry
    assert slot is not None and slot.is_active
