"""Capture without a slot: triggers, drains, and the way to a slot as soon as the WAL can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tailrace.bases.reading import Outcome, Reading
from tailrace.bases.runner import ThreadRunner
from tailrace.bases.stretch import Stretch
from tailrace.capture import Settings
from tailrace.errors import SlotLost, SourceError
from tailrace.log import Reader, read_genesis
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import SLOT_LOST, lost_with_slot, wanted_bases
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import connect
from tailrace.postgres.slot import drop_slot
from tailrace.status import State, gather
from tailrace.storage import FileStore, Store
from tests.bases.taking import take
from tests.capture.hybrid.test_handover import modes, trigger_states
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import Running, hybrid, published, settings, wait_until
from tests.capture.tracked import oid_of
from tests.server import VERSIONS, Database, Server, ServerFactory

pytestmark = pytest.mark.usefixtures("quickly")

NAMES = SourceNames.of("main")


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def server(request: pytest.FixtureRequest, postgres_server: ServerFactory) -> Server:
    """A server as most are: its WAL cannot be decoded."""
    return postgres_server({"wal_level": "replica"}, version=request.param)


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with server.database() as fresh:
        yield fresh


@pytest.fixture
def told(database: Database, source: psycopg.Connection) -> Settings:
    return settings(database.dsn, "public.t*", hybrid=hybrid("auto"))


def wait_drained(capture: Running, store: FileStore, count: int) -> None:
    """Until the log holds so many changes."""
    capture.wait_until(lambda: read_genesis(store) and len(list(read_changes(store))) >= count)


def test_triggers_capture_what_the_wal_cannot_give(
    source: psycopg.Connection, store: FileStore, told: Settings
) -> None:
    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        source.execute("UPDATE t SET v = 'c' WHERE id = 1")
        source.execute("DELETE FROM t WHERE id = 2")
        wait_drained(capture, store, 4)
        assert_equal(store, source, "public.t")
        streams = {"lake": ["public.t*", "public.nope"]}
        report = gather(told.duties.dsn, NAMES, Reader(store), streams, now_s=0.0)
        assert report.streams[0].uncaptured == ("public.nope",)
        assert (report.source.state, report.source.by_trigger) == (State.DRAINING, ("public.t",))
        assert report.is_healthy
    # Nothing is drained again by the next one, and nothing left out.
    source.execute("INSERT INTO t VALUES (3, 'd')")
    with Running(told, store) as capture:
        wait_drained(capture, store, 5)
        assert_equal(store, source, "public.t")
    assert len(list(read_changes(store))) == 5


def test_what_a_slot_has_left_in_the_metrics_does_not_outlive_it(
    source: psycopg.Connection, store: FileStore, told: Settings
) -> None:
    names = ("lag_bytes", "lag_seconds", "retained_wal_bytes", "last_keepalive_seconds")
    with Running(told, store) as capture:
        metrics = capture.metrics
        for gauge in (metrics.lag_bytes, metrics.lag_seconds, metrics.retained_bytes):
            gauge.set(1e10)
        metrics.last_keepalive.set(60)
        capture.wait_until(lambda: [capture.value(name) for name in names] == [0, 0, 0, 0])
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_drained(capture, store, 1)
        capture.wait_until(lambda: capture.value("durable_lsn") > 0)
        assert capture.value("received_lsn") == capture.value("durable_lsn")


def test_wal_mode_does_not_start_without_logical(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with Running(settings(database.dsn, hybrid=hybrid("wal")), store) as capture:
        error = capture.fails_with(SourceError)
    assert str(error) == "wal_level is replica, capture from the wal needs logical"


def test_wal_mode_over_a_log_of_triggers_does_not_start_without_logical_and_changes_nothing(
    database: Database, source: psycopg.Connection, store: FileStore, told: Settings
) -> None:
    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
    other = LockSession(database.dsn)
    wait_until(lambda: other.try_lock(NAMES.slot))
    # It does not stand by either; and then there is nobody to stand by for.
    for _ in range(2):
        with Running(settings(database.dsn, "public.t*", hybrid=hybrid("wal")), store) as capture:
            error = capture.fails_with(SourceError)
        assert str(error) == "wal_level is replica, capture from the wal needs logical"
        other.close()
    assert (modes(source), trigger_states(source, "t")) == ({"t": "TRIGGER"}, ["A", "A"])
    source.execute("INSERT INTO t VALUES (1, 'meanwhile')")
    with Running(told, store) as capture:
        wait_drained(capture, store, 1)
    assert wanted_bases(store, newest_positions(store)) == {}


def test_wal_mode_of_a_table_leaves_it_to_its_triggers_until_the_wal_can_be_had(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    told: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
    own = hybrid("auto", tables={"public.t": "wal"})
    with Running(settings(database.dsn, "public.t*", hybrid=own), store) as capture:
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_drained(capture, store, 1)
        assert (modes(source), trigger_states(source, "t")) == ({"t": "TRIGGER"}, ["A", "A"])
        source.execute("CREATE TABLE t2 (id int PRIMARY KEY)")
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "t2": "TRIGGER"})
    own = hybrid("auto", tables={"public.*": "wal"})
    with Running(settings(database.dsn, "public.t*", hybrid=own), store) as capture:
        # A table that nothing captures yet gets no triggers.
        source.execute("CREATE TABLE t3 (id int PRIMARY KEY); INSERT INTO t VALUES (2, 'b')")
        wait_drained(capture, store, 2)
        capture.wait_until(lambda: "table left out table=public.t3" in caplog.text)
        assert modes(source) == {"t": "TRIGGER", "t2": "TRIGGER"}


@pytest.mark.parametrize("before", ["trigger", "auto"])
def test_wal_mode_over_a_log_of_triggers_hands_over_without_a_new_base(
    server: Server, database: Database, store: FileStore, before: str
) -> None:
    with database.connect() as source:
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        told = settings(database.dsn, "public.t", hybrid=hybrid(before))
        with Running(told, store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
            source.execute("INSERT INTO t VALUES (1, 'drained')")
            wait_drained(capture, store, 1)
        source.execute("INSERT INTO t VALUES (2, 'buffered')")
    server.settings["wal_level"] = "logical"
    server.restart()
    with database.connect() as source:
        # A table that is new, and named outright, waits for the slot as well.
        source.execute("CREATE TABLE t2 (id int PRIMARY KEY)")
        told = settings(database.dsn, "public.t", "public.t2", hybrid=hybrid("wal"))
        with Running(told, store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "WAL", "t2": "WAL"})
            source.execute("INSERT INTO t VALUES (3, 'streamed')")
            wait_drained(capture, store, 3)
        assert_equal(store, source, "public.t")
    assert [(change.new or {})["id"] for change in read_changes(store)] == ["1", "2", "3"]
    assert wanted_bases(store, newest_positions(store)) == {}


def test_wal_mode_does_not_start_behind_a_lost_slot_and_changes_nothing(
    server: Server, database: Database, store: FileStore
) -> None:
    server.settings["wal_level"] = "logical"
    server.restart()
    own = hybrid("auto", tables={"public.t2": "trigger"})
    with database.connect() as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE t2 (id int PRIMARY KEY)")
        with Running(settings(database.dsn, "public.t*", hybrid=own), store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "WAL", "t2": "TRIGGER"})
        before = published(source)
        with connect(database.dsn) as conn:
            drop_slot(conn, NAMES.slot)
        with Running(settings(database.dsn, "public.t*", hybrid=hybrid("wal")), store) as capture:
            error = capture.fails_with(SlotLost)
        assert isinstance(error, SlotLost) and "capture.mode to auto" in error.hint
        assert (modes(source), published(source)) == ({"t": "WAL", "t2": "TRIGGER"}, before)
        assert trigger_states(source, "t2") == ["A", "A"]


def test_a_restart_with_logical_hands_every_table_over(
    server: Server, database: Database, store: FileStore, told: Settings
) -> None:
    with Running(told, store) as capture:
        with database.connect() as source:
            capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
            source.execute("INSERT INTO t VALUES (1, 'a')")
            wait_drained(capture, store, 1)
        server.settings["wal_level"] = "logical"
        server.restart()
        with database.connect() as source:
            source.execute("INSERT INTO t VALUES (2, 'b')")
            capture.wait_until(lambda: modes(source) == {"t": "WAL"})
            source.execute("INSERT INTO t VALUES (3, 'c')")
            wait_drained(capture, store, 3)
            assert_equal(store, source, "public.t")
            capture.wait_until(lambda: trigger_states(source, "t") == [])
            origins = [change.op for change in read_changes(store)]
            assert origins == ["I", "I", "I"]


def test_f073_a_transaction_that_stays_open_keeps_drains_going(
    server: Server, database: Database, store: FileStore, told: Settings
) -> None:
    server.settings["wal_level"] = "logical"
    by_trigger = settings(database.dsn, "public.t*", hybrid=hybrid("trigger"))
    with Running(by_trigger, store) as capture, database.connect() as source:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
    server.restart()
    with (
        database.connect() as source,
        database.connect() as long,
        Running(told, store) as capture,
    ):
        with long.transaction():
            long.execute("INSERT INTO t VALUES (1, 'long')")
            source.execute("INSERT INTO t VALUES (2, 'short')")
            wait_drained(capture, store, 1)
            source.execute("INSERT INTO t VALUES (3, 'short')")
            wait_drained(capture, store, 2)
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        wait_drained(capture, store, 3)
        assert_equal(store, source, "public.t")


def test_f077_a_slot_that_is_lost_falls_back_to_triggers_and_a_new_base(
    server: Server, database: Database, store: FileStore
) -> None:
    server.settings["wal_level"] = "logical"
    server.restart()
    told = settings(
        database.dsn, "public.t*", hybrid=hybrid("auto", tables={"public.tt": "trigger"})
    )
    with database.connect() as source:
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        source.execute("CREATE TABLE tt (v text)")
        with Running(told, store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "WAL", "tt": "TRIGGER"})
            source.execute("INSERT INTO tt VALUES ('seen')")
            wait_drained(capture, store, 1)
        source.execute("INSERT INTO t VALUES (1, 'lost')")
        source.execute("INSERT INTO tt VALUES ('kept')")
    with connect(database.dsn) as conn:
        drop_slot(conn, NAMES.slot)
    server.settings["wal_level"] = "replica"
    server.restart()
    with database.connect() as source, Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "tt": "TRIGGER"})
        wait_drained(capture, store, 2)
        assert [change.relation.name for change in read_changes(store)] == ["tt", "tt"]
        (wanted,) = wanted_bases(store, newest_positions(store)).values()
        assert wanted.reason == SLOT_LOST, "also if it is asked for once more"
        assert lost_with_slot(store) == {wanted.oid: wanted.position}
        source.execute("INSERT INTO t VALUES (2, 'seen')")
        wait_drained(capture, store, 3)


@pytest.fixture
def ahead(server: Server, database: Database, store: FileStore) -> Iterator[psycopg.Connection]:
    """A slot that has not delivered a row of public.tt, which triggers have buffered."""
    server.settings["wal_level"] = "logical"
    server.restart()
    with database.connect() as source:
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        source.execute("CREATE TABLE tt (id bigint PRIMARY KEY, v text)")
        source.execute("INSERT INTO tt VALUES (1, 'before')")
        with Running(told_apart(database), store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "WAL", "tt": "TRIGGER"})
            source.execute("INSERT INTO tt VALUES (2, 'seen')")
            wait_drained(capture, store, 1)
        source.execute("INSERT INTO tt VALUES (3, 'in the base, and not in the log')")
        yield source


def told_apart(database: Database) -> Settings:
    """Of two tables one is captured by triggers for good."""
    tables = {"public.tt": "trigger"}
    return settings(database.dsn, "public.t*", hybrid=hybrid("auto", tables=tables))


def test_f077_a_base_that_is_ahead_of_a_lost_slot_is_taken_again(
    database: Database, store: FileStore, ahead: psycopg.Connection
) -> None:
    """The base shows what triggers have buffered; drains bring that once more, after the base."""
    oid = oid_of(ahead, "public.tt")
    take(database.dsn, store, oid)
    base = newest_positions(store)[oid]
    with connect(database.dsn) as conn:
        drop_slot(conn, NAMES.slot)
    with Running(told_apart(database), store) as capture:
        wait_drained(capture, store, 2)
        assert [change.end_lsn > base for change in read_changes(store)] == [False, True]
        capture.wait_until(lambda: oid in wanted_bases(store, newest_positions(store)))


class Interrupted(ThreadRunner):
    """Something happens before the first stretches are read."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(2)
        self._happens: Callable[[], None] | None = happens

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return super().run(reading, store, stretches)


def test_f077_a_base_is_taken_again_if_the_slot_is_lost_while_it_is_read(
    database: Database, store: FileStore, ahead: psycopg.Connection
) -> None:
    """It is complete when the drains that take over have looked for such bases."""
    oid = oid_of(ahead, "public.tt")
    with ExitStack() as stack:

        def lose_slot() -> None:
            with connect(database.dsn) as conn:
                drop_slot(conn, NAMES.slot)
            capture = stack.enter_context(Running(told_apart(database), store))
            wait_drained(capture, store, 2)
            # By now it has looked.
            ahead.execute("INSERT INTO tt VALUES (4, 'after')")
            wait_drained(capture, store, 3)

        (result,) = take(database.dsn, store, oid, runner=Interrupted(lose_slot))
    assert result.base is not None
    assert [change.end_lsn > result.base.position for change in read_changes(store)] == [False] * 3
    assert newest_positions(store)[oid] == result.base.position


def test_f076_a_slot_that_is_lost_in_the_middle_of_a_hand_over_calls_it_off(
    server: Server, database: Database, store: FileStore
) -> None:
    server.settings["wal_level"] = "logical"
    server.restart()
    # The stream is never near enough for the hand-over to end.
    stuck = settings(database.dsn, hybrid=hybrid("auto", handover_lag_bytes_max=-1))
    with database.connect() as source:
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        with Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        with Running(stuck, store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "TRANSITIONING"})
        source.execute("INSERT INTO t VALUES (1, 'kept')")
    with connect(database.dsn) as conn:
        drop_slot(conn, NAMES.slot)
    server.settings["wal_level"] = "replica"
    server.restart()
    with database.connect() as source, Running(stuck, store) as capture:
        wait_drained(capture, store, 1)
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        assert trigger_states(source, "t") == ["A", "A"]
        query = "SELECT slot_name, transition_started_at, last_error FROM tailrace.change_tracking"
        assert source.execute(query).fetchone() == (None, None, None)
        assert wanted_bases(store, newest_positions(store)) == {}, "nothing was lost"
    assert [(change.new or {})["v"] for change in read_changes(store)] == ["kept"]


def test_two_sources_of_a_database_take_in_their_own_buffers_alone(
    database: Database, server: Server, store: FileStore, tmp_path: Path
) -> None:
    server.settings["wal_level"] = "logical"
    server.restart()
    with database.connect() as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
        mine = settings(database.dsn, "public.t", hybrid=hybrid("trigger"))
        others = settings(database.dsn, "public.u", hybrid=hybrid("trigger"))
        others = replace(others, duties=replace(others.duties, names=SourceNames.of("other")))
        with Running(others, FileStore(tmp_path / "other")) as capture:
            capture.wait_until(lambda: modes(source) == {"u": "TRIGGER"})
        with Running(mine, store) as capture:
            capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "u": "TRIGGER"})
        rules = hybrid("auto", tables={"public.t": "trigger"})
        with Running(settings(database.dsn, "public.t", hybrid=rules), store) as capture:
            capture.wait_for_stream()
            assert {each for each in published(source) if "main" in each[0]} == {
                ("tailrace_main_buffers", f"changes_{oid_of(source, 'public.t')}")
            }
            source.execute("INSERT INTO u VALUES (1)")
            source.execute("INSERT INTO t VALUES (1)")
            wait_drained(capture, store, 1)
    assert [change.relation.name for change in read_changes(store)] == ["t"]


def test_what_is_shown_tells_modes_and_alerts(
    source: psycopg.Connection,
    store: FileStore,
    told: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.capture.housekeeping.HEALTH_INTERVAL_S", 0.1)
    with Running(told, store) as capture:
        capture.wait_until(lambda: capture.tables("TRIGGER") == 1)
        assert (capture.tables("WAL"), capture.value("alerts")) == (0, 0)
        report = gather(told.duties.dsn, NAMES, Reader(store), {}, now_s=0.0)
        (shown,) = report.source.modes
        assert (shown.table, shown.mode) == ("public.t", "TRIGGER")


@pytest.mark.parametrize("is_logical", [False, True], ids=["drained", "streamed"])
def test_tables_altered_moved_truncated_and_dropped_are_followed_by_triggers(
    server: Server, database: Database, store: FileStore, is_logical: bool
) -> None:
    if is_logical:
        server.settings["wal_level"] = "logical"
        server.restart()
    own = {"public.*": "trigger", "shop.*": "trigger"}
    told = settings(database.dsn, "public.t*", "shop.*", hybrid=hybrid("auto", tables=own))
    with database.connect() as source, Running(told, store) as capture:
        source.execute("CREATE SCHEMA shop")
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        source.execute("CREATE TABLE t2 (id bigint PRIMARY KEY)")
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "t2": "TRIGGER"})
        source.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO t2 VALUES (1)")
        source.execute("ALTER TABLE t ADD w int")
        source.execute("INSERT INTO t VALUES (2, 'b', 2)")
        source.execute("ALTER TABLE t DROP COLUMN v")
        source.execute("TRUNCATE t")
        source.execute("INSERT INTO t VALUES (3, 3)")
        source.execute("DROP TABLE t2")
        wait_drained(capture, store, 5)
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        assert_equal(store, source, "public.t")
        source.execute("ALTER TABLE t RENAME TO tt; ALTER TABLE tt SET SCHEMA shop")
        source.execute("INSERT INTO shop.tt VALUES (4, 4)")
        capture.wait_until(lambda: modes(source) == {"tt": "TRIGGER"})
        wait_drained(capture, store, 6)
        assert [change.relation.qualified for change in read_changes(store)][-1] == "shop.tt"
