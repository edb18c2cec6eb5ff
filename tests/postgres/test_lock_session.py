"""Leadership on an ordinary session: one leader, with or without a slot; who hangs loses it."""

from __future__ import annotations

import pytest

from tailrace.errors import SourceError
from tailrace.postgres.leading import must_lead
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.session import connect
from tests.capture.running import wait_until
from tests.server import Database

SLOTS = ["tailrace_main", "tailrace_other", "tailrace_third"]


def test_a_leader_with_a_slot_and_one_without_shut_each_other_out(database: Database) -> None:
    first, second = LockSession(database.dsn), ReplicationConnection(database.dsn)
    try:
        assert first.try_lock(SLOTS[0])
        assert not second.try_lock(SLOTS[0])
        first.close()
        wait_until(lambda: second.try_lock(SLOTS[0]))
        third = LockSession(database.dsn)
        assert not third.try_lock(SLOTS[0])
        third.close()
    finally:
        second.close()


def test_a_role_without_rights_can_lead(database: Database) -> None:
    with database.connect() as conn:
        conn.execute("CREATE ROLE plain LOGIN")
    session = LockSession(f"{database.dsn} user=plain")
    assert session.try_lock(SLOTS[0])
    session.close()


def test_f082_a_session_that_is_not_pinged_loses_the_lock(database: Database) -> None:
    hung, other = LockSession(database.dsn, sender_timeout_s=1), LockSession(database.dsn)
    try:
        assert hung.try_lock(SLOTS[0])
        wait_until(lambda: other.try_lock(SLOTS[0]))
        with pytest.raises(SourceError):
            hung.ping()
    finally:
        other.close()


@pytest.mark.parametrize("slot", SLOTS)
def test_f082_the_server_tells_who_does_not_lead_any_more(database: Database, slot: str) -> None:
    session = LockSession(database.dsn)
    with connect(database.dsn) as conn:
        with pytest.raises(SourceError, match="another process leads"):
            must_lead(conn, slot, session.pid)
        assert session.try_lock(slot)
        must_lead(conn, slot, session.pid)
        with pytest.raises(SourceError):
            must_lead(conn, slot, conn.info.backend_pid)
        session.close()
        wait_until(lambda: _has_gone(database, session.pid))
        with pytest.raises(SourceError):
            must_lead(conn, slot, session.pid)


def _has_gone(database: Database, pid: int) -> bool:
    with database.connect() as conn:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        return conn.execute(query, [pid]).fetchone() == (0,)
