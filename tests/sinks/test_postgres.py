"""A target database: what it holds, what it refuses, and what happens when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import SchemaError, SinkError
from tailrace.model import Lsn, NamedType, PgType, Relation
from tailrace.postgres.copy_out import copy_out
from tailrace.postgres.session import connect
from tailrace.sinks import Batch, Load
from tailrace.sinks.columns import Mode
from tailrace.sinks.postgres import PostgresOptions, PostgresSink, sessions
from tailrace.sinks.postgres.check import check_target
from tailrace.sinks.postgres.refusals import sink_error
from tests.capture.running import wait_until
from tests.decode.live import ODD, Live
from tests.proxy import Proxy
from tests.server import Database, Servers
from tests.sinks.harness import PostgresHarness
from tests.sinks.source import Source, batch_of, load_of, relation
from tests.sinks.test_conformance import deliver, filled

SINK = "tailrace.sinks.postgres.sink.failpoint"


@pytest.fixture
def copy(database: Database) -> Iterator[PostgresHarness]:
    with closing(PostgresHarness(database)) as harness:
        yield harness


@contextmanager
def at(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> Iterator[None]:
    """Do something at a failpoint of the sink."""
    with monkeypatch.context() as patch:
        patch.setattr(SINK, lambda reached: act() if reached == name else None)
        yield


def test_f063_f069_values_of_every_type_come_back_from_the_copy(
    copy: PostgresHarness, source_servers: Servers
) -> None:
    # From an older server, whose types the target has as well.
    with source_servers(16).database() as origin, Live.on(origin) as live:
        live.insert_edges(ODD)
        (added,) = live.streamed()
        copy.sink.write(batch_of(1, added))
        _assert_equal(copy, live, added.relation)
        # Now every value goes through a MERGE.
        for update in (
            sql.SQL('UPDATE {} SET "bool" = NOT "bool" WHERE id % 2 = 0'),
            sql.SQL("UPDATE {} SET id = -id WHERE id % 3 = 0"),
        ):
            live.app.execute(update.format(sql.Identifier(ODD)))
        (changed,) = live.streamed()
        copy.sink.write(batch_of(2, changed, known=[f"public.{ODD}"]))
        _assert_equal(copy, live, added.relation)
        # And every value in a base.
        load = Load("lake", 3, added.relation, Lsn(0x9000), 0)
        copy.sink.load(load, [live.base(ODD, added.relation)])
        _assert_equal(copy, live, added.relation)


def _assert_equal(copy: PostgresHarness, live: Live, table: Relation) -> None:
    place = sql.Identifier(*copy.options.place(table))
    query = sql.SQL("COPY (SELECT * FROM {} ORDER BY id) TO STDOUT").format(place)
    with connect(copy.database.dsn) as conn:
        found = [line for part in copy_out(conn, query, block_bytes=1) for line in part.to_pylist()]
    assert found == live.lines(ODD).to_pylist()


def test_columns_have_the_types_of_the_source_and_text_where_it_has_its_own(
    copy: PostgresHarness,
) -> None:
    kinds = {"id": PgType.INT8, "price": PgType.NUMERIC, "tag": PgType.UUID, "doc": PgType.JSONB}
    shape = relation(columns={**kinds, "list": 1007, "mood": 20_000, "many": 20_001, "of": 2205})
    named = (NamedType(20_000, "public.mood"), NamedType(20_001, "public.n", PgType.INT4))
    copy.sink.prepare(replace(shape, type_names=named))
    with copy.database.connect() as conn:
        rows = conn.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'orders'::regclass AND attnum > 0 ORDER BY attnum"
        ).fetchall()
    assert [name for (name,) in rows] == [
        *("bigint", "numeric(12,2)", "uuid", "jsonb", "integer[]", "text", "integer", "text"),
    ]


def test_table_of_somebody_else_is_refused_and_left_alone(copy: PostgresHarness) -> None:
    source = Source()
    source.insert(id=1)
    changes = source.take()
    with copy.database.connect() as conn:
        conn.execute("CREATE TABLE orders (id int8 PRIMARY KEY); INSERT INTO orders VALUES (7)")
        attempts: list[Callable[[], None]] = [
            lambda: copy.sink.prepare(source.relation),
            lambda: copy.sink.write(batch_of(1, changes)),
            lambda: copy.sink.load(load_of(1, source), []),
        ]
        for refused in attempts:
            with pytest.raises(SchemaError, match="was not made by this sink") as caught:
                refused()
            assert caught.value.hint and not caught.value.retry
        assert conn.execute("SELECT * FROM orders").fetchall() == [(7,)]
    (found,) = check_target(copy.options, "stream a", [("public", "orders")])
    assert found.severity == "blocker" and "DROP TABLE" in found.fix


def test_default_that_somebody_has_put_on_the_target_takes_the_place_of_no_null(
    copy: PostgresHarness,
) -> None:
    source = Source()
    copy.sink.prepare(source.relation)
    with copy.database.connect() as conn:
        conn.execute("ALTER TABLE orders ALTER n SET DEFAULT 7")
    source.insert(id=1)
    copy.sink.write(batch_of(1, source.take()))
    assert copy.rows(source.relation) == source.expected()
    copy.sink.load(load_of(2, source), source.base())
    assert copy.rows(source.relation) == source.expected()


def test_column_that_the_target_generates_is_left_to_it(copy: PostgresHarness) -> None:
    source = Source()
    source.insert(id=1, n=1)
    copy.sink.write(batch_of(1, source.take()))
    with copy.database.connect() as conn:
        conn.execute("ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (n * 2) STORED")
        source.update(1, n=5)
        source.insert(id=2, n=3)
        copy.sink.write(batch_of(2, source.take()))
        copy.sink.load(load_of(3, source), source.base())
        rows = conn.execute("SELECT id, twice FROM orders ORDER BY id").fetchall()
    assert rows == [(1, 10), (2, 6)]


def test_f049_key_that_is_only_spelt_anew_takes_the_unsent_value_along(
    copy: PostgresHarness,
) -> None:
    """For Postgres 1.0 and 1.00 are one key; for who is told of both they are two."""
    shape = relation(columns={"id": PgType.NUMERIC, "doc": PgType.TEXT, "n": PgType.INT4})
    unsized = tuple(replace(column, typmod=-1) for column in shape.columns)
    source = Source(replace(shape, columns=unsized))
    source.insert(id="1.0", doc="large", n=1)
    copy.sink.write(batch_of(1, source.take()))
    source.update("1.0", id="1.00", n=2, unchanged=["doc"])
    copy.sink.write(batch_of(2, source.take()))
    with copy.database.connect() as conn:
        rows = conn.execute("SELECT id::text, doc, n FROM orders").fetchall()
    assert rows == [("1.00", "large", 2)]


def test_one_schema_takes_one_table_of_a_name(database: Database) -> None:
    with closing(PostgresSink(PostgresOptions(database.dsn, schema="all of it"))) as sink:
        sink.prepare(relation(schema="a"))
        with pytest.raises(SchemaError, match=r"is that of a\.orders, not of b\.orders"):
            sink.prepare(relation(schema="b"))
        source = Source(relation(schema="a"))
        source.insert(id=1)
        sink.write(batch_of(1, source.take()))
        assert sink.committed("lake", [source.relation]) == {"a.orders": 1}


def test_other_mode_on_the_same_table_is_refused(copy: PostgresHarness) -> None:
    source = filled(copy)
    with (
        closing(PostgresHarness(copy.database, Mode.APPEND)) as other,
        pytest.raises(SchemaError, match="another mode"),
    ):
        other.sink.prepare(source.relation)


def test_f104_lost_answer_to_a_commit_changes_nothing(
    copy: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(copy)
    source.update(1, n=10)
    source.delete(2)
    batch = batch_of(2, source.take())
    port = str(conninfo_to_dict(copy.database.tcp_dsn)["port"])
    with Proxy(int(port)) as proxy:
        dsn = make_conninfo(copy.database.tcp_dsn, port=str(proxy.port), sslmode="disable")
        with closing(PostgresSink(PostgresOptions(dsn))) as sink:

            def freeze() -> None:
                # The server gets the COMMIT, and its answer never arrives.
                proxy.faults.frozen = True
                threading.Thread(target=cut_when_committed).start()

            def cut_when_committed() -> None:
                key = {"public.orders": 2}
                wait_until(lambda: copy.sink.committed("lake", [source.relation]) == key)
                proxy.cut()

            with (
                at(monkeypatch, "postgres.before_commit", freeze),
                pytest.raises(SinkError) as caught,
            ):
                sink.write(batch)
            assert caught.value.retry
            proxy.faults.frozen = False
            assert copy.rows(source.relation) == source.expected()
            sink.write(batch)
    assert copy.rows(source.relation) == source.expected()


def test_f081_session_that_is_ended_before_its_commit_changes_nothing(
    copy: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(copy)
    before = source.expected()
    source.update(1, n=10)
    batch = batch_of(2, source.take())

    def end() -> None:
        with copy.database.connect() as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname ="
                " current_database() AND state = 'idle in transaction'"
            )

    with at(monkeypatch, "postgres.after_rows", end), pytest.raises(SinkError) as caught:
        copy.sink.write(batch)
    assert caught.value.retry
    assert copy.rows(source.relation) == before
    # The sessions that waited are not tried.
    copy.sink.write(batch)
    assert copy.rows(source.relation) == source.expected()


def test_reader_sees_the_old_rows_until_a_load_is_whole(
    copy: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(copy)
    before = source.expected()
    source.truncate()
    source.insert(id=8)
    seen = []
    with at(
        monkeypatch,
        "postgres.before_commit",
        lambda: seen.append(copy.rows(source.relation)),
    ):
        copy.sink.load(load_of(2, source), source.base())
        source.truncate()
        deliver(copy, 3, source)
    assert seen[0] == before and len(seen[1]) == 1
    assert copy.rows(source.relation) == []


@pytest.mark.parametrize(
    ("state", "retry"),
    [
        *(("40P01", True), ("40001", True), ("55P03", True), ("08006", True), ("57P01", True)),
        *(("53300", True), ("23505", True), ("42P07", True)),
        *(("42501", True), ("25006", True), ("57P04", True), ("53400", True)),
        *(("22P02", False), ("0A000", False), ("2BP01", False)),
    ],
)
def test_refusals_pass_or_need_a_person(state: str, retry: bool) -> None:
    error = sink_error(psycopg.errors.lookup(state)("no"), "db/shop")
    assert (error.retry, bool(error.hint or retry)) == (retry, True)


def test_f104_deadlock_ends_the_batch_which_goes_through_the_next_time(
    copy: PostgresHarness,
) -> None:
    source = filled(copy)
    source.update(1, n=10)
    source.update(3, n=30)
    batch = batch_of(2, source.take())
    with copy.database.connect() as other, ThreadPoolExecutor(1) as pool:
        # Whoever looks first for a deadlock is the one that ends it.
        other.execute("SET deadlock_timeout = '1h'")
        with other.transaction(force_rollback=True):
            other.execute("UPDATE orders SET n = 0 WHERE id = 3")
            writing = pool.submit(copy.sink.write, batch)
            wait_until(lambda: _is_waiting(copy.database))
            other.execute("UPDATE orders SET n = 0 WHERE id = 1")
            error = writing.exception()
    assert isinstance(error, SinkError) and error.retry and "40P01" in str(error)
    copy.sink.write(batch)
    assert copy.rows(source.relation) == source.expected()


def test_f104_database_slower_than_its_timeout_changes_nothing_and_takes_the_batch_later(
    copy: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(copy)
    before = source.expected()
    source.update(1, n=10)
    source.insert(id=4, n=4)
    batch = batch_of(2, source.take())
    monkeypatch.setitem(sessions._SETTINGS, "statement_timeout", "100ms")
    with (
        closing(PostgresSink(copy.options)) as hasty,
        copy.database.connect() as other,
        other.transaction(force_rollback=True),
    ):
        other.execute("UPDATE orders SET n = 0 WHERE id = 1")
        with pytest.raises(SinkError, match="57014") as raised:
            hasty.write(batch)
    assert raised.value.retry
    assert copy.rows(source.relation) == before
    assert copy.sink.committed("lake", [source.relation]) == {"public.orders": 1}
    copy.sink.write(batch)
    assert copy.rows(source.relation) == source.expected()


def _is_waiting(database: Database) -> bool:
    with database.connect() as conn:
        query = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        return conn.execute(query).fetchone() is not None


def test_password_is_in_no_text(database: Database) -> None:
    dsn = make_conninfo(database.tcp_dsn, password="hunter2", port="1")
    options = PostgresOptions(dsn)
    assert "hunter2" not in repr(options)
    with closing(PostgresSink(options)) as sink, pytest.raises(SinkError) as caught:
        sink.prepare(relation())
    assert caught.value.retry and "source.dsn" not in caught.value.hint
    assert "hunter2" not in str(caught.value) + caught.value.hint


def test_check_names_the_rights_that_are_missing(copy: PostgresHarness) -> None:
    place = [("public", "orders"), ("copy", "orders")]
    assert list(check_target(copy.options, "stream a", place)) == []
    with copy.database.connect() as conn:
        conn.execute("CREATE ROLE poor LOGIN")
        conn.execute(
            sql.SQL(
                "REVOKE ALL ON DATABASE {0} FROM public; GRANT CONNECT ON DATABASE {0} TO poor"
            ).format(sql.Identifier(copy.database.name))
        )
    options = replace(copy.options, dsn=make_conninfo(copy.database.dsn, user="poor"))
    fixes = [found.fix for found in check_target(options, "stream a", place)]
    wanted = ["GRANT TEMPORARY", "GRANT CREATE ON DATABASE", "GRANT CREATE, USAGE ON SCHEMA"]
    assert len(fixes) == 3 and all(map(str.startswith, fixes, wanted))
    with closing(PostgresSink(options)) as sink, pytest.raises(SinkError) as caught:
        sink.prepare(relation())
    assert caught.value.retry and "tailrace check" in caught.value.hint


def _refused(sink: PostgresSink, batch: Batch) -> str:
    """How a batch is refused that is to be tried again: what is said, and what to see to."""
    with pytest.raises(SinkError) as caught:
        sink.write(batch)
    assert caught.value.retry and caught.value.hint.endswith("delivery then goes on by itself")
    return f"{caught.value} ({caught.value.hint})"


def test_f098_database_that_lets_nobody_in_is_asked_again_and_takes_the_batch_when_it_is_cured(
    copy: PostgresHarness,
) -> None:
    source = filled(copy)
    source.update(1, n=10)
    batch, name = batch_of(2, source.take()), sql.Identifier(copy.database.name)
    away = make_conninfo(copy.database.dsn, user="clerk")
    with (
        copy.database.server.connect() as admin,
        copy.database.connect() as owner,
        closing(PostgresSink(replace(copy.options, dsn=away))) as sink,
    ):
        assert "role clerk does not exist" in _refused(sink, batch)
        admin.execute("CREATE ROLE clerk NOLOGIN")
        assert "does not let role clerk in" in _refused(sink, batch)
        admin.execute("ALTER ROLE clerk LOGIN")
        assert "42501" in (told := _refused(sink, batch)) and "tailrace check" in told
        owner.execute(
            "GRANT USAGE ON SCHEMA tailrace_sink TO clerk;"
            "GRANT ALL ON ALL TABLES IN SCHEMA tailrace_sink TO clerk; GRANT ALL ON orders TO clerk"
        )
        owner.close()
        copy.close()
        admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO elsewhere").format(name))
        assert "does not exist at" in _refused(sink, batch)
        admin.execute(sql.SQL("ALTER DATABASE elsewhere RENAME TO {}").format(name))
        sink.write(batch)
    assert copy.rows(source.relation) == source.expected()


def test_oldest_server_at_hand_takes_it_all(source_servers: Servers) -> None:
    with (
        source_servers(16).database() as database,
        closing(PostgresHarness(database)) as copy,
    ):
        source = filled(copy)
        source.update(1, id=7, unchanged=["doc"])
        source.update(2, n=20, unchanged=["doc", "amount"])
        source.add_column("extra")
        source.delete(3)
        deliver(copy, 2, source)
        assert copy.rows(source.relation) == source.expected()
