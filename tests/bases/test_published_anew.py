"""A base begins when its table is captured, and is none if the table is taken up anew meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace

import psycopg

from tailrace.capture.membership import Membership
from tailrace.capture.removal import take_out_one
from tailrace.capture.roll import rolls_of
from tailrace.postgres.add_table import adds_beside_writers
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.session import connect
from tailrace.storage import FileStore
from tests.bases.oracle import assert_equal
from tests.bases.taking import PATIENT, captured, oid_of, take
from tests.capture.running import NAMES, Running, settings, wait_caught_up, wait_until
from tests.server import Database


def waits_for(source: psycopg.Connection, writer: psycopg.Connection) -> bool:
    """Whether a slot that is being made waits for the end of this transaction."""
    query = """SELECT count(*) FROM pg_locks
                WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = %s"""
    xid = writer.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
    return source.execute(query, xid).fetchone() != (0,)


def test_f017_who_writes_a_table_published_anew_while_a_slot_is_made_is_not_seen_in_part(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    """The slot is past its wait for him: he is neither in the base nor whole in the stream."""
    with captured(database, store, source, "t"):
        pass
    roll = rolls_of(NAMES)[0]
    limits = replace(PATIENT, try_ms=60_000)
    with (
        connect(database.dsn) as conn,
        database.connect() as first,
        database.connect() as second,
        database.connect() as writer,
    ):
        # An older minor version would lock out the writers of a table that it publishes.
        assert adds_beside_writers(conn.info.server_version)
        (table,) = tables_matching(conn, ["public.t"])
        first.execute("BEGIN; SELECT pg_current_xact_id()")
        taking = threading.Thread(
            target=take, args=(database.dsn, store, table.oid), kwargs={"limits": limits}
        )
        taking.start()
        wait_until(lambda: waits_for(source, first))
        second.execute("BEGIN; SELECT pg_current_xact_id()")
        first.execute("COMMIT")
        wait_until(lambda: waits_for(source, second))
        assert take_out_one(conn, store, roll, table, "it is a test")
        writer.execute("BEGIN; INSERT INTO t VALUES (-1, 'before')")
        assert Membership(conn, store, roll).take_up_one(table) is None
        writer.execute("INSERT INTO t VALUES (-2, 'after')")
        second.execute("COMMIT")
        wait_until(lambda: not taking.is_alive() or waits_for(source, writer))
        writer.execute("COMMIT")
        taking.join(120)
    with Running(settings(database.dsn), store) as capture:
        capture.wait_for_stream()
        wait_caught_up(capture, source)
    assert take(database.dsn, store) == []
    assert_equal(store, source, "public.t")


def test_a_table_that_is_not_captured_gets_no_base(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    """Nothing would ask for a newer one when it is published, and what was written until then
    would be in neither.
    """
    with captured(database, store, source, "t"):
        pass
    source.execute("CREATE TABLE later (id int PRIMARY KEY)")
    (result,) = take(database.dsn, store, oid_of(source, "later"))
    assert result.base is None and str(result.error) == "public.later is not captured"
