"""A log and a slot are joined only if the one continues the other; everything else is refused, with
a line that says what to do.
"""

from __future__ import annotations

import logging
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.capture.membership import Membership, Refusal
from tailrace.capture.roll import check_membership, rolls_of
from tailrace.errors import (
    ConfigError,
    SchemaError,
    SegmentMissing,
    SlotLost,
    SourceError,
    SourceGap,
    TailraceError,
)
from tailrace.log import Reader, RelationUse, Writer, layout, recover_tip
from tailrace.log.bases import newest_bases
from tailrace.model import Lsn, Offset
from tailrace.postgres.check_publication import publication_findings
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import read_server, wal_position
from tailrace.postgres.session import Connection, connect
from tailrace.storage import FileStore, Store
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import (
    NAMES,
    Running,
    confirmed,
    is_published,
    settings,
    wait_caught_up,
    wait_until,
)
from tests.log.faulty_store import WatchedStore
from tests.log.making import no_catalog
from tests.server import Database, ServerFactory, both_versions

WHOLE, _ = rolls_of(NAMES)


@pytest.fixture
def begun(database: Database, source: psycopg.Connection, store: FileStore) -> Running:
    """A capture that has run and was stopped; it can be entered again."""
    running = Running(settings(database.dsn), store)
    with running:
        running.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(running, source)
    wait_until(lambda: not _is_active(source))
    return Running(running.told, store)


def _is_active(connection: psycopg.Connection) -> bool:
    row = connection.execute("SELECT bool_or(active) FROM pg_replication_slots").fetchone()
    return row == (True,)


def refusal(running: Running, kind: type[TailraceError]) -> TailraceError:
    """What it ends with."""
    with running:
        error = running.fails_with(kind)
    assert isinstance(error, kind)
    assert error.hint
    return error


def test_a_stopped_capture_goes_on_where_it_was(
    begun: Running, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("INSERT INTO t VALUES (2, 'meanwhile')")
    with begun:
        wait_until(lambda: begun.value("durable_lsn") > 0)
        wait_caught_up(begun, source)
    assert_equal(store, source, "public.t")


def test_f010_a_slot_that_was_advanced_by_hand_is_a_gap(
    begun: Running, source: psycopg.Connection
) -> None:
    source.execute("INSERT INTO t VALUES (2, 'lost')")
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [NAMES.slot])
    error = refusal(begun, SourceGap)
    assert str(confirmed(source)) in str(error)
    assert "tailrace teardown" in error.hint


def test_f010_a_slot_that_another_session_has_moved_while_we_waited_for_it_is_a_gap(
    begun: Running, source: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    thief = ReplicationConnection(begun.told.duties.dsn)
    thief.start(NAMES.slot, [NAMES.publication], Lsn(0))
    with begun:
        wait_until(lambda: "slot is in use" in caplog.text)
        source.execute("INSERT INTO t VALUES (2, 'stolen')")
        end = wal_position(source)
        thief.send_status(end, end, request_reply=False, unix_time_us=0)
        wait_until(lambda: confirmed(source) >= end)
        thief.close()
        begun.fails_with(SourceGap)


def test_f026_a_slot_that_was_dropped_and_made_again_is_a_gap(
    begun: Running, source: psycopg.Connection
) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", [NAMES.slot])
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [NAMES.slot])
    refusal(begun, SourceGap)


def test_f026_a_slot_that_was_dropped_is_lost(begun: Running, source: psycopg.Connection) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", [NAMES.slot])
    refusal(begun, SlotLost)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP PUBLICATION tailrace_main",
        "DROP PUBLICATION tailrace_main; CREATE PUBLICATION tailrace_main FOR TABLE t",
    ],
)
def test_a_publication_that_was_dropped_is_a_gap(
    begun: Running, source: psycopg.Connection, statement: str
) -> None:
    for part in statement.split("; "):
        source.execute(part.encode())
    error = refusal(begun, SourceGap)
    assert "publication tailrace_main was" in str(error)


def test_a_publication_that_is_dropped_while_we_stream_ends_the_stream(
    begun: Running, source: psycopg.Connection
) -> None:
    with begun:
        begun.wait_for_stream()
        source.execute("DROP PUBLICATION tailrace_main")
        begun.fails_with(SourceGap)


def test_f061_a_publication_that_cannot_be_set_right_ends_the_stream(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE ROLE plain LOGIN REPLICATION")
    source.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO plain").format(_named(database)))
    source.execute("ALTER TABLE t OWNER TO plain")
    plain = psycopg.conninfo.make_conninfo(database.dsn, user="plain")
    with Running(settings(plain), store) as capture:
        capture.wait_until(lambda: is_published(source, "t"))
        source.execute("ALTER PUBLICATION tailrace_main OWNER TO postgres")
        error = capture.fails_with(SourceGap)
    assert "must be owner of publication tailrace_main" in str(error)
    with connect(plain) as conn:
        (finding,) = publication_findings(conn, NAMES.publication, read_server(conn))
    source.execute(finding.fix.encode())
    source.execute("DELETE FROM t")
    with Running(settings(plain), store) as capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: is_published(source, "t"))
    source.execute("DROP OWNED BY plain")


def _named(database: Database) -> sql.Identifier:
    return sql.Identifier(database.name)


def test_a_dropped_table_leaves_the_publication_rightly(
    begun: Running, source: psycopg.Connection
) -> None:
    source.execute("CREATE TABLE extra (id int PRIMARY KEY)")
    source.execute("DROP TABLE t")
    with begun:
        begun.wait_for_stream()
        begun.wait_until(lambda: is_published(source, "extra"))


def test_f039_a_server_that_was_set_back_is_a_gap(
    begun: Running, source: psycopg.Connection, store: FileStore
) -> None:
    tip = recover_tip(store)
    assert tip is not None
    writer = Writer(store, tip, writer_id="ahead", describe=no_catalog)
    writer.put_progress(Lsn(tip.position + (1 << 30)))
    error = refusal(begun, SourceGap)
    assert "restored" in error.hint


def test_a_log_of_another_database_is_refused(
    begun: Running, database: Database, store: FileStore
) -> None:
    with database.server.database() as other:
        error = refusal(Running(settings(other.dsn), store), ConfigError)
    assert "another database" in str(error)


def test_a_log_that_was_begun_for_another_database_is_refused(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    store.put_new(layout.INTENT, b'{"system_id": "1", "database": "x", "slot": "y"}')
    error = refusal(Running(settings(database.dsn), store), ConfigError)
    assert "another database or slot" in str(error)


def test_an_empty_log_beside_a_slot_of_our_name_is_refused(
    begun: Running, source: psycopg.Connection, tmp_path: Path
) -> None:
    elsewhere = FileStore(tmp_path / "elsewhere")
    error = refusal(Running(begun.told, elsewhere), SourceError)
    assert "is empty" in str(error) and elsewhere.list("") == []
    assert confirmed(source)


def test_an_empty_log_beside_a_publication_of_our_name_is_refused(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE PUBLICATION tailrace_main")
    error = refusal(Running(settings(database.dsn), store), SourceError)
    assert "not by us" in str(error)


def test_a_log_without_its_beginning_is_not_begun_again(
    begun: Running, source: psycopg.Connection, store: FileStore
) -> None:
    before = confirmed(source)
    store.delete([layout.GENESIS])
    refusal(begun, SegmentMissing)
    assert confirmed(source) == before


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("(id bigint)", "has no primary key"),
        ("(id bigint); ALTER TABLE refused REPLICA IDENTITY NOTHING", "identity nothing"),
    ],
)
def test_a_table_that_cannot_be_taken_is_refused_if_named_and_left_out_if_not(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    caplog: pytest.LogCaptureFixture,
    definition: str,
    reason: str,
) -> None:
    for part in f"CREATE TABLE refused {definition}".split("; "):
        source.execute(part.encode())
    named = Running(settings(database.dsn, "public.t", "public.refused"), store)
    assert reason in str(refusal(named, SchemaError))
    quoted = Running(settings(database.dsn, "public.t", '"public"."refused"'), store)
    assert reason in str(refusal(quoted, SchemaError))
    capture = Running(settings(database.dsn, "public.*"), store)
    with caplog.at_level(logging.WARNING), capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'flows')")
        wait_caught_up(capture, source)
        wait_until(lambda: reason in caplog.text)
    assert not is_published(source, "refused")
    assert_equal(store, source, "public.t")


def test_if_no_table_can_be_taken_the_first_reason_is_told(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
    error = refusal(Running(settings(database.dsn), store), SchemaError)
    assert "public.t has replica identity nothing" in str(error)


def test_an_empty_table_has_a_base_at_once_and_one_with_rows_waits_for_one(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE filled (id bigint PRIMARY KEY)")
    source.execute("INSERT INTO filled VALUES (1)")
    with Running(settings(database.dsn), store) as capture:
        capture.wait_until(lambda: is_published(source, "t") and is_published(source, "filled"))
        capture.wait_for_stream()
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
    (base,) = newest_bases(store).values()
    assert (base.relation.qualified, base.origin, base.parts) == ("public.t", "empty", ())
    (use,) = [use for use in _uses(store) if use.relation.name == "t"]
    assert base.position < use.since.commit_lsn
    assert (base.frame, base.relation) == (use.frame, use.relation)


def _uses(store: FileStore) -> list[RelationUse]:
    links = Reader(store).walk(Offset.whole(Reader(store).begin()))
    return [use for link in links for use in link.header.relations]


def test_a_named_table_that_is_being_written_is_taken_up_when_its_writer_is_done(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    capture = Running(settings(database.dsn, "public.t"), store)
    with database.connect() as writer, capture:
        with writer.transaction():
            # A lock without a transaction id: the slot can be made, the table not be added.
            writer.execute("LOCK TABLE t IN ROW EXCLUSIVE MODE")
            capture.wait_for_stream()
            assert not is_published(source, "t")
        capture.wait_until(lambda: is_published(source, "t"))
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def _waits_for(connection: psycopg.Connection, holder: psycopg.Connection) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return connection.execute(query, [holder.info.backend_pid]).fetchone() != (0,)


@both_versions
def test_f025_capture_names_what_keeps_the_slot_from_being_made_and_then_goes_on(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.capture.attach.SLOT_WAIT_MS", 100)
    capture = Running(settings(database.dsn), store)
    with database.connect() as forgetful, caplog.at_level(logging.WARNING):
        forgetful.execute("BEGIN")
        forgetful.execute("CREATE TABLE half_made (a int)")
        source.execute("BEGIN")
        source.execute("CREATE TABLE prepared (a int)")
        source.execute("PREPARE TRANSACTION 'forgotten'")
        with capture:
            wait_until(lambda: f"pid {forgetful.info.backend_pid}" in caplog.text)
            forgetful.execute("COMMIT")
            wait_until(lambda: "transactions: prepared transaction 'forgotten'" in caplog.text)
            source.execute("ROLLBACK PREPARED 'forgotten'")
            capture.wait_for_stream()
            source.execute("INSERT INTO t VALUES (1, 'a')")
            wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


@both_versions
def test_f025_a_slot_that_cannot_decode_what_was_open_while_it_was_made_is_made_again(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    capture = Running(settings(database.dsn), store)
    with (
        database.connect() as first,
        database.connect() as second,
        database.connect() as altering,
        database.connect() as writing,
        caplog.at_level(logging.INFO),
    ):
        first.execute("BEGIN; SELECT pg_current_xact_id()")
        with capture:
            capture.wait_until(lambda: _waits_for(source, first))
            # In this order, or else whoever looks at what is running lets Postgres see the change.
            second.execute("BEGIN; SELECT pg_current_xact_id()")
            altering.execute("BEGIN; TRUNCATE t")
            first.execute("COMMIT")
            capture.wait_until(lambda: _waits_for(source, altering) or _waits_for(source, second))
            altering.execute("COMMIT")
            capture.wait_until(lambda: _waits_for(source, second))
            writing.execute("BEGIN; INSERT INTO t VALUES (1, 'into the new file')")
            second.execute("COMMIT")
            capture.wait_until(lambda: "the slot is tried when these have ended" in caplog.text)
            writing.execute("COMMIT")
            capture.wait_for_stream()
            assert "making another" in caplog.text
            capture.wait_until(lambda: is_published(source, "t"))
            source.execute("INSERT INTO t VALUES (2, 'streamed')")
            wait_caught_up(capture, source)
    assert [change.new for change in read_changes(store)] == [{"id": "2", "v": "streamed"}]


@both_versions
def test_f025_capture_that_waits_for_a_transaction_stops_when_told(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.capture.attach.SLOT_WAIT_MS", 500)
    capture = Running(settings(database.dsn), store)
    with database.connect() as forgetful:
        forgetful.execute("BEGIN")
        forgetful.execute("CREATE TABLE half_made (a int)")
        with capture:
            capture.wait_until(lambda: _waits_for(source, forgetful))
            capture.stop()
        assert capture.error is None
        forgetful.execute("ROLLBACK")
    wait_until(lambda: _slot_count(source) == 0)
    with Running(capture.told, store) as again:
        again.wait_for_stream()


def _slot_count(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone()
    assert row is not None
    return int(row[0])


def test_f034_f035_a_server_that_cannot_is_told_what_to_set_and_nothing_is_left(
    postgres_server: ServerFactory, tmp_path: Path
) -> None:
    server = postgres_server(
        {"max_replication_slots": "1", "max_wal_senders": "1", "wal_level": "replica"}
    )
    store = FileStore(tmp_path / "log")
    running = settings(server.dsn)
    assert "wal_level" in refusal(Running(running, store), SourceError).hint
    server.stop()
    server.settings["wal_level"] = "logical"
    server.start()
    with server.connect() as admin:
        assert admin.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        admin.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        admin.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
        assert "max_replication_slots" in refusal(Running(running, store), SourceError).hint
        assert admin.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        admin.execute("SELECT pg_drop_replication_slot('other')")
        with Running(running, store) as capture:
            # The intent that the failed beginning left behind is no obstacle.
            capture.wait_for_stream()
            second = Running(running, store)
            assert "max_wal_senders" in refusal(second, SourceError).hint
            admin.execute("INSERT INTO t VALUES (1, 'a')")
            wait_caught_up(capture, admin)
        assert_equal(store, admin, "public.t")


def test_f035_a_role_without_rights_is_told_the_grant(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE ROLE plain LOGIN")
    plain = psycopg.conninfo.make_conninfo(database.dsn, user="plain")
    assert "REPLICATION" in refusal(Running(settings(plain), store), SourceError).hint
    source.execute("ALTER ROLE plain REPLICATION")
    assert "GRANT CREATE" in refusal(Running(settings(plain), store), SourceError).hint


def test_failed_additions_in_a_row_are_not_a_change_by_hand(
    begun: Running, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE extra (id int PRIMARY KEY)")
    for _ in range(12):
        with connect(begun.told.duties.dsn) as conn:
            # The record of the change has been put; its commit does not come about.
            (refused,) = _take_up(conn, _cutting(store, source, conn.info.backend_pid))
            assert refused.is_passing
    assert not is_published(source, "extra")
    with connect(begun.told.duties.dsn) as conn:
        check_membership(conn, store, WHOLE)
        assert len(store.list(layout.PUBLICATION)) < 12
        assert _take_up(conn, store) == []
        assert len(store.list(layout.PUBLICATION)) == 1
    assert is_published(source, "extra")


def _take_up(conn: Connection, store: Store) -> list[Refusal]:
    membership = Membership(conn, store, WHOLE)
    return membership.take_up(Selection(["public.extra"]), should_go_on=lambda: True)


def _cutting(store: Store, admin: psycopg.Connection, pid: int) -> Store:
    """A store that ends a session as soon as it has put a record."""

    def after(what: str, key: str) -> None:
        if what == "put" and key.startswith(layout.PUBLICATION):
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    return WatchedStore(store, after=after)
