"""A slot that Postgres has made without all of the catalog is told from a good one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
import pytest

from tailrace.postgres.publication import create_publication
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.slot import create_slot
from tailrace.postgres.slot_proof import can_decode, have_ended, open_until
from tests.server import Database

NAME = "tailrace_main"
PATIENCE_S = 120.0


def _wait_blocked_by(admin: Connection, *holders: psycopg.Connection) -> None:
    """Until somebody waits for the end of one of these."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) && %s::int[]"
    deadline = time.monotonic() + PATIENCE_S
    while admin.execute(query, ([h.info.backend_pid for h in holders],)).fetchone() == (0,):
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.02)


@contextmanager
def _spoilt(
    source: Database, admin: Connection, capture: Connection, *, by: LiteralString
) -> Iterator[None]:
    """A slot is being made, in its second phase; what `by` did in the first is missed by Postgres.
    In the end it is made.
    """
    making = threading.Thread(target=create_slot, args=(capture, NAME), kwargs=_PATIENT)
    with source.connect() as first, source.connect() as second, source.connect() as altering:
        first.execute("BEGIN; SELECT pg_current_xact_id()")
        making.start()
        _wait_blocked_by(admin, first)
        # Older than what is missed: else any look of Postgres at who is running, of which it takes
        # one every 15 seconds, would let it see the change.
        second.execute("BEGIN; SELECT pg_current_xact_id()")
        altering.execute("BEGIN")
        altering.execute(by)
        first.execute("COMMIT")
        _wait_blocked_by(admin, altering, second)
        altering.execute("COMMIT")
        _wait_blocked_by(admin, second)
        yield
        second.execute("COMMIT")
        making.join(PATIENCE_S)


@pytest.mark.parametrize("is_spoilt", [True, False])
def test_f025_a_slot_without_all_of_the_catalog_is_found_when_all_has_ended(
    source: Database, admin: Connection, capture: Connection, app: Connection, is_spoilt: bool
) -> None:
    """Postgres misses what is done in the first phase of making a slot, and committed in the
    second, for those who begin in the second.
    """
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    create_publication(capture, NAME)
    by: LiteralString = "TRUNCATE app.t" if is_spoilt else "SELECT"
    with source.connect() as writing, connect(source.dsn) as watching:
        with _spoilt(source, admin, capture, by=by):
            writing.execute("BEGIN; INSERT INTO app.t VALUES (1)")
        until = open_until(capture, NAME)
        assert not have_ended(watching, until)
        assert can_decode(capture, NAME, NAME)
        writing.execute("COMMIT")
        assert have_ended(watching, until)
        assert can_decode(capture, NAME, NAME) is not is_spoilt


def test_f025_whoever_begins_when_the_slot_is_being_tried_is_decoded_with_all_of_the_catalog(
    source: Database, admin: Connection, capture: Connection, app: Connection
) -> None:
    """Postgres goes on with what it has missed until somebody changes the catalog."""
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    app.execute("CREATE TABLE u (a int PRIMARY KEY)")
    create_publication(capture, NAME)
    with source.connect() as writing, connect(source.dsn) as watching:
        with _spoilt(source, admin, capture, by="TRUNCATE app.t"):
            # Else nothing is decoded by what was missed.
            writing.execute("BEGIN; INSERT INTO app.u VALUES (1)")
        until = open_until(capture, NAME)
        writing.execute("COMMIT")
        assert have_ended(watching, until)
        writing.execute("INSERT INTO app.t VALUES (1)")
        assert can_decode(capture, NAME, NAME)


_PATIENT = {"lock_timeout_ms": 120_000}
