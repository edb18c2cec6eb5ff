"""Streams go on whatever becomes of the session on which their locks are asked for."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tailrace.control.streams import declare, reporting
from tailrace.errors import SourceError
from tailrace.postgres.lock_session import LockSession
from tailrace.storage import Store
from tailrace.streams.leading import Leadership
from tests.capture.running import wait_until
from tests.server import Database
from tests.streams.control.test_control import LAKE, MEMORY, SOURCE, Node, running


class BreakingSession(LockSession):
    """One that breaks when it is asked for a lock."""

    def try_lock(self, slot: str) -> bool:
        raise SourceError("the connection is lost", retry=True)


def test_streams_flow_on_if_the_database_goes_away_again_while_locks_are_taken(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    node = Node(database.dsn, store, LAKE)
    with running(node):
        wait_until(lambda: node.leads("lake"))
        before = node.wish("lake")
        node.control._open_session = lambda: BreakingSession(database.dsn)
        conn.execute("""SELECT pg_terminate_backend(pid) FROM pg_locks
                         WHERE locktype = 'advisory' AND pid <> pg_backend_pid()""")
        wait_until(lambda: "lost" in node.control._said)
        assert node.wish("lake") == before
    # So does one that has never got any further.
    alone = Node(database.dsn, store, LAKE)
    alone.control._open_session = lambda: BreakingSession(database.dsn)
    with running(alone):
        assert alone.leads("lake")


def test_streams_of_the_file_flow_although_their_table_may_not_be_read(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    conn.execute("CREATE ROLE stranger LOGIN")
    try:
        node = Node(make_conninfo(database.dsn, user="stranger"), store, LAKE)
        with running(node):
            assert "denied" in node.control._said and node.leads("lake")
    finally:
        conn.execute("DROP ROLE stranger")


class HalfSession(LockSession):
    """One that breaks at its second lock, and that the server does not know to be gone."""

    is_broken = False

    def try_lock(self, slot: str) -> bool:
        if self.is_broken:
            raise SourceError("the connection is lost", retry=True)
        self.is_broken = True
        return super().try_lock(slot)


def test_f082_locks_of_a_session_that_broke_among_them_are_known_as_our_own(
    database: Database,
) -> None:
    """A second one breaks before the server has noticed the end of the first."""
    leadership = Leadership(SOURCE)
    sessions = (HalfSession(database.dsn), HalfSession(database.dsn))
    with closing(sessions[0]) as first, closing(sessions[1]) as second:
        leadership.presume(["a", "b"])
        for session, names in ((first, ["a", "b"]), (second, ["b", "a"])):
            with pytest.raises(SourceError):
                leadership.contend(session, names)
            leadership.lost_session()
        with closing(LockSession(database.dsn)) as third:
            leadership.contend(third, ["a", "b"])
            assert leadership.leads("a", 0.0) and leadership.leads("b", 0.0)
            wait_until(lambda: all(leadership.is_free(third, name) for name in ("a", "b")))
