"""The comparison of two captures leaves nothing behind, and takes no more than it may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tailrace.capture.buffers.shapes import BufferShapes
from tailrace.capture.hybrid import shadow, shadow_publication
from tailrace.capture.hybrid.shadow import Shadow
from tailrace.capture.hybrid.shadow_publication import withdraw_but
from tailrace.errors import NotLeading, SourceError
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.frames import Frames
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection, connect
from tests.capture.drains.test_slot_cycle import make_source
from tests.capture.running import NAMES, published, wait_until
from tests.capture.tracked import oid_of
from tests.server import VERSIONS, Servers


@pytest.fixture
def conn(source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a database in which public.t is in trigger mode and its buffer published."""
    with source_servers(VERSIONS[0]).database() as database, database.connect() as connection:
        make_source(connection)
        yield connection


@pytest.fixture
def leader(conn: psycopg.Connection) -> Iterator[LockSession]:
    """A session that holds the lock."""
    with closing(LockSession(conn.info.dsn)) as session:
        assert session.try_lock(NAMES.slot)
        yield session


def begin(conn: psycopg.Connection, leader: LockSession) -> Shadow:
    """That of public.t."""
    (table,) = read_tables(conn, [oid_of(conn, "public.t")])
    dsn = conn.info.dsn
    return Shadow(dsn, NAMES, table, BufferShapes(dsn), leader_pid=leader.pid)


def compared_tables(conn: psycopg.Connection) -> list[str]:
    """Those in the publication for comparisons."""
    return sorted(name for publication, name in published(conn) if publication == NAMES.shadow)


def slot_count(conn: psycopg.Connection) -> int:
    """How many slots of comparisons there are in this database."""
    query = """SELECT count(*) FROM pg_replication_slots
                WHERE slot_name LIKE 'tailrace\\_shadow%' AND database = current_database()"""
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_a_transaction_that_is_too_large_is_let_pass_and_the_others_are_compared(
    conn: psycopg.Connection,
    leader: LockSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(shadow, "COMPARED_BYTES_MAX", 20_000)
    conn.execute("ALTER PUBLICATION tailrace_main_buffers SET (publish = 'insert')")
    compared = begin(conn, leader)
    sizes: list[int] = []
    compare = Shadow._compare

    def measured(self: Shadow, frames: Frames) -> str:
        sizes.append(frames.data_bytes)
        return compare(self, frames)

    monkeypatch.setattr(Shadow, "_compare", measured)
    conn.execute("INSERT INTO t SELECT n, 'first' FROM generate_series(1, 10) AS n")
    conn.execute("INSERT INTO t SELECT n, 'large' FROM generate_series(11, 3000) AS n")
    conn.execute("UPDATE t SET v = 'last' WHERE id <= 10")
    assert compared.look() == ""
    assert compared.compared == 20
    assert max(sizes) < 20_000
    assert caplog.text.count("transaction is too large to be compared table=public.t") == 1
    compared.close()
    wait_until(lambda: slot_count(conn) == 0)


def test_the_slot_of_a_leader_that_was_stopped_is_ended_by_the_server(
    conn: psycopg.Connection, leader: LockSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "IDLE_TIMEOUT", "200ms")
    stopped = begin(conn, leader)
    # Whether it has ended may be asked as often as one likes.
    wait_until(lambda: stopped.has_ended)
    wait_until(lambda: slot_count(conn) == 0)
    with pytest.raises(SourceError):
        stopped.look()
    stopped.close()


def test_f082_a_late_leader_takes_no_table_out_that_is_compared_by_the_one_who_leads(
    conn: psycopg.Connection, leader: LockSession
) -> None:
    late = begin(conn, leader)
    leader.unlock(NAMES.slot)
    with closing(LockSession(conn.info.dsn)) as successor:
        assert successor.try_lock(NAMES.slot)
        compared = begin(conn, successor)
        late.close()
        with pytest.raises(NotLeading):
            begin(conn, leader)
        conn.execute("INSERT INTO t VALUES (1, 'one')")
        assert (compared.look(), compared.compared) == ("", 1)
        compared.close()
    assert compared_tables(conn) == []


def test_f082_who_wakes_up_while_he_withdraws_a_table_takes_out_none_that_is_compared_by_now(
    conn: psycopg.Connection, leader: LockSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody led when he looked, and the publication had no other table."""
    late, members = begin(conn, leader), shadow_publication._members
    leader.unlock(NAMES.slot)
    with closing(LockSession(conn.info.dsn)) as successor:
        compared: list[Shadow] = []

        def hang(session: Connection, names: SourceNames) -> dict[int, psycopg.sql.Identifier]:
            monkeypatch.undo()
            found = members(session, names)
            assert successor.try_lock(NAMES.slot)
            compared.append(begin(conn, successor))
            return found

        monkeypatch.setattr(shadow_publication, "_members", hang)
        late.close()
        conn.execute("INSERT INTO t VALUES (1, 'one')")
        assert (compared[0].look(), compared[0].compared) == ("", 1)
        assert compared_tables(conn) == ["t"]
        compared[0].close()


@pytest.mark.parametrize(
    ("held", "left"),
    [
        ("LOCK TABLE public.x IN SHARE UPDATE EXCLUSIVE MODE", ["t", "x"]),
        ("DROP TABLE public.x", ["t", "x"]),
    ],
)
def test_a_table_that_somebody_holds_keeps_no_other_published(
    conn: psycopg.Connection, leader: LockSession, held: str, left: list[str]
) -> None:
    conn.execute("CREATE TABLE x (id int PRIMARY KEY)")
    conn.execute("CREATE TABLE y (id int PRIMARY KEY)")
    compared = begin(conn, leader)
    conn.execute("ALTER PUBLICATION tailrace_main_shadow ADD TABLE x, y")
    with connect(conn.info.dsn) as owner, connect(conn.info.dsn) as session, owner.transaction():
        owner.execute(held.encode())
        withdraw_but(session, NAMES, [oid_of(conn, "public.t")], leader_pid=leader.pid)
        assert compared_tables(conn) == left
    withdraw_but(conn, NAMES, [oid_of(conn, "public.t")], leader_pid=leader.pid)
    assert compared_tables(conn) == ["t"]
    compared.close()


@pytest.mark.parametrize(
    ("held", "left"), [("ALTER TABLE public.x ADD v int", []), ("DROP TABLE public.x", ["x"])]
)
def test_whoever_alters_or_drops_a_table_that_was_left_behind_holds_up_no_turn(
    conn: psycopg.Connection, leader: LockSession, held: str, left: list[str]
) -> None:
    conn.execute("CREATE TABLE x (id int PRIMARY KEY)")
    conn.execute("CREATE TABLE y (id int PRIMARY KEY)")
    conn.execute("CREATE PUBLICATION tailrace_main_shadow FOR TABLE x, y")
    with connect(conn.info.dsn) as owner, connect(conn.info.dsn) as session:
        with owner.transaction():
            owner.execute(held.encode())
            withdraw_but(session, NAMES, (), leader_pid=leader.pid)
            assert compared_tables(conn) == left
        withdraw_but(session, NAMES, (), leader_pid=leader.pid)
    assert fingerprint(conn, NAMES.shadow) is None


def test_a_table_that_is_dropped_just_when_it_is_to_leave_is_out(
    conn: psycopg.Connection, leader: LockSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn.execute("CREATE TABLE x (id int PRIMARY KEY)")
    conn.execute("CREATE TABLE y (id int PRIMARY KEY)")
    compared, members = begin(conn, leader), shadow_publication._members
    conn.execute("ALTER PUBLICATION tailrace_main_shadow ADD TABLE x, y")

    def drop(session: Connection, names: SourceNames) -> dict[int, psycopg.sql.Identifier]:
        monkeypatch.undo()
        found = members(session, names)
        conn.execute("DROP TABLE x")
        return found

    monkeypatch.setattr(shadow_publication, "_members", drop)
    with connect(conn.info.dsn) as session:
        withdraw_but(session, NAMES, [oid_of(conn, "public.t")], leader_pid=leader.pid)
    assert compared_tables(conn) == ["t"]
    compared.close()


def test_who_has_led_leaves_no_table_in_the_publication_if_nobody_leads(
    conn: psycopg.Connection, leader: LockSession
) -> None:
    compared = begin(conn, leader)
    assert compared_tables(conn) == ["t"]
    leader.unlock(NAMES.slot)
    compared.close()
    assert fingerprint(conn, NAMES.shadow) is None
