"""A table locked against its writers: partitions with it, and not waited for without prospect."""

from __future__ import annotations

import pytest

from tailrace.errors import SourceError
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.session import connect
from tailrace.postgres.table_lock import lock_out_writers, must_end_soon
from tests.server import Database

_HELD = """
SELECT relation::regclass::text FROM pg_locks
 WHERE pid = pg_backend_pid() AND mode = 'ShareRowExclusiveLock' ORDER BY 1
"""


def test_a_lock_is_not_queued_for_behind_one_who_does_nothing(database: Database) -> None:
    with connect(database.dsn) as conn, database.connect() as writer:
        conn.execute("CREATE TABLE public.t (id int)")
        (table,) = tables_matching(conn, ["public.t"])
        with writer.transaction():
            writer.execute("INSERT INTO public.t VALUES (1)")
            conn.execute("SELECT pg_sleep(0.01)")
            with pytest.raises(
                SourceError, match=r"public\.t is being written: pid \d+"
            ) as refused:
                must_end_soon(conn, table, 1)
            assert refused.value.retry
            must_end_soon(conn, table, 600_000)
        must_end_soon(conn, table, 1)


def test_partitions_are_locked_with_their_table_and_waited_for_no_longer_than_before(
    database: Database,
) -> None:
    with connect(database.dsn) as conn:
        conn.execute("CREATE TABLE public.t (id int) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE public.low PARTITION OF public.t FOR VALUES FROM (0) TO (9)")
        (table,) = tables_matching(conn, ["public.t"])
        with conn.transaction():
            lock_out_writers(conn, table, 200, wait_ms=1000)
            assert conn.execute(_HELD).fetchall() == [("public.low",), ("public.t",)]
            assert conn.execute("SHOW lock_timeout").fetchone() == ("200ms",)
