"""A table locked against its writers: partitions with it, and not waited for without prospect."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Timer

import pytest
from psycopg import sql

from tailrace.control.schema import migrate
from tailrace.errors import SourceError
from tailrace.postgres.barrier import Barrier
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.table_lock import lock_out_writers, must_end_soon
from tailrace.postgres.triggers import drop_triggers, install_triggers
from tests.capture.running import NAMES, wait_until
from tests.server import Database, ServerFactory

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


def test_writers_do_not_wait_for_a_standby_that_we_would_wait_for(
    postgres_server: ServerFactory,
) -> None:
    server = postgres_server({"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
    with server.database() as database, database.connect() as admin:
        admin.execute("CREATE TABLE public.t (id int)")

        def give_up() -> None:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names TO ''")
            admin.execute("SELECT pg_reload_conf()")

        late = Timer(10, give_up)
        late.start()
        with connect(database.dsn) as conn:
            (table,) = tables_matching(conn, ["public.t"])
            with conn.transaction():
                lock_out_writers(conn, table, 200)
                conn.execute("INSERT INTO public.t VALUES (1)")
            late.cancel()
            assert admin.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",)


_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation IS NOT NULL)"


_WAITING = "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"


def _lock_out(conn: Connection, table: TableInfo, *, lock_timeout_ms: int = 200) -> None:
    with Barrier(conn, NAMES.slot, conn.info.backend_pid, lock_timeout_ms).locked(table):
        pass


def _drop(conn: Connection, table: TableInfo) -> None:
    drop_triggers(conn, table, lock_timeout_ms=200)


@pytest.mark.parametrize(("deadlock_timeout", "held_s"), [("1s", 0.5), ("300ms", 0.0)])
def test_f075_whoever_waits_behind_us_for_a_table_whose_partition_he_has_written_is_not_killed(
    database: Database, deadlock_timeout: str, held_s: float
) -> None:
    """A table is free late, and so are its partitions."""
    with database.connect() as admin:
        name = sql.Identifier(admin.info.dbname)
        query = sql.SQL("ALTER DATABASE {} SET deadlock_timeout TO {}")
        admin.execute(query.format(name, sql.Literal(deadlock_timeout)))
    with connect(database.dsn) as conn, database.connect() as busy, database.connect() as writer:
        conn.execute("CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY LIST (id)")
        conn.execute("CREATE TABLE public.a PARTITION OF public.t FOR VALUES IN (1)")
        conn.execute("CREATE TABLE public.b PARTITION OF public.t FOR VALUES IN (2)")
        (table,) = tables_matching(conn, ["public.t"])
        for session, own in ((busy, "INSERT INTO t VALUES (2)"), (writer, "DELETE FROM a")):
            for own_query in (b"BEGIN", own.encode(), b"ROLLBACK", b"BEGIN", own.encode()):
                session.execute(own_query)
        with ThreadPoolExecutor(2) as pool:
            acting = pool.submit(_lock_out, conn, table, lock_timeout_ms=900)
            wait_until(lambda: acting.done() or busy.execute(_WAITING).fetchone() == (1,))
            writing = pool.submit(writer.execute, b"INSERT INTO t VALUES (1)")
            wait_until(lambda: acting.done() or busy.execute(_WAITING).fetchone() == (2,))
            Event().wait(held_s)
            busy.execute("COMMIT")
            writing.result(10)
            with pytest.raises(SourceError, match="is being written") as refused:
                acting.result(10)
        assert refused.value.retry


@pytest.mark.parametrize(
    ("act", "being_written", "written", "then"),
    [
        (
            _lock_out,
            b"INSERT INTO a VALUES (1)",
            b"INSERT INTO b VALUES (2)",
            b"INSERT INTO t VALUES (3)",
        ),
        (
            _drop,
            b"INSERT INTO b VALUES (2)",
            b"INSERT INTO a VALUES (1)",
            b"INSERT INTO b VALUES (3)",
        ),
    ],
)
def test_f075_whoever_writes_partitions_is_not_killed_though_several_are_waited_for(
    database: Database,
    act: Callable[[Connection, TableInfo], None],
    being_written: bytes,
    written: bytes,
    then: bytes,
) -> None:
    with connect(database.dsn) as conn, database.connect() as busy, database.connect() as writer:
        migrate(conn)
        conn.execute("CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY LIST (id)")
        conn.execute("CREATE TABLE public.a PARTITION OF public.t FOR VALUES IN (1)")
        conn.execute("CREATE TABLE public.b PARTITION OF public.t FOR VALUES IN (2, 3)")
        (table,) = tables_matching(conn, ["public.t"])
        install_triggers(conn, table, lock_timeout_ms=200)
        for session, own in ((busy, being_written), (writer, written)):
            # Who has written a partition once does not look at its table any more.
            for query in (b"BEGIN", own, b"ROLLBACK", b"BEGIN", own):
                session.execute(query)
        # As on a server that looks for deadlocks after a second, with five times as many.
        writer.execute("SET deadlock_timeout TO '300ms'")
        with ThreadPoolExecutor(1) as pool:
            acting = pool.submit(act, conn, table)
            wait_until(lambda: busy.execute(_WAITS).fetchone() == (True,))
            later = Timer(0.1, busy.execute, ["COMMIT"])
            later.start()
            writer.execute(then)
            later.join()
            with pytest.raises(SourceError, match=r"is being written|is in use") as refused:
                acting.result(10)
        assert refused.value.retry
