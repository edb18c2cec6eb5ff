"""The publication: tables added under a short lock, changes by hand noticed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from tailrace.errors import SchemaError, SourceError, StoreError
from tailrace.postgres.add_table import EmptyTable, add_table, adds_beside_writers
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.publication import (
    Fingerprint,
    create_publication,
    drop_publication,
    fingerprint,
)
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection, connect
from tests.postgres.names import HOSTILE
from tests.server import Database

NAME = "tailrace_main"


@pytest.fixture
def publication(capture: Connection) -> str:
    create_publication(capture, NAME)
    return NAME


@pytest.fixture
def orders(app: Connection, capture: Connection) -> TableInfo:
    app.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return _only(capture, "app.orders")


def _only(conn: Connection, pattern: str) -> TableInfo:
    (table,) = tables_matching(conn, [pattern])
    return table


def _add(
    conn: Connection,
    table: TableInfo,
    before_commit: Callable[[Fingerprint], None] = lambda _: None,
    *,
    lock_timeout_ms: int = 5000,
) -> EmptyTable | None:
    return add_table(
        conn, NAME, table, lock_timeout_ms=lock_timeout_ms, before_commit=before_commit
    )


def test_a_new_publication_is_empty_and_goes_through_the_root(capture: Connection) -> None:
    assert fingerprint(capture, NAME) is None
    made = create_publication(capture, NAME)
    assert made == fingerprint(capture, NAME)
    assert made.members == ()
    query = """SELECT pubviaroot, pubinsert, pubupdate, pubdelete, pubtruncate, puballtables
                 FROM pg_publication"""
    assert capture.execute(query).fetchone() == (True, True, True, True, True, False)
    drop_publication(capture, NAME)
    assert fingerprint(capture, NAME) is None
    drop_publication(capture, NAME)


def test_f035_a_role_that_may_not_create_is_told_the_grant(
    admin: Connection, capture: Connection, source: Database
) -> None:
    revoke = sql.SQL("REVOKE CREATE ON DATABASE {} FROM capture")
    admin.execute(revoke.format(sql.Identifier(source.name)))
    with pytest.raises(SourceError, match="role capture may not make a publication") as caught:
        create_publication(capture, NAME)
    assert caught.value.hint == f'GRANT CREATE ON DATABASE "{source.name}" TO "capture"'


def test_before_commit_gets_the_fingerprint_that_is_true_afterwards(
    publication: str, orders: TableInfo, capture: Connection, admin: Connection
) -> None:
    planned: list[Fingerprint] = []

    def remember(new: Fingerprint) -> None:
        seen = fingerprint(admin, publication)
        assert seen is not None and seen.members == (), "not committed yet"
        planned.append(new)

    _add(capture, orders, remember)
    assert planned == [fingerprint(capture, publication)]
    assert [(m.relation_oid, m.table) for m in planned[0].members] == [(orders.oid, "app.orders")]
    assert Fingerprint.from_dict(json.loads(json.dumps(planned[0].to_dict()))) == planned[0]
    # Neither does vacuum change it.
    for table in ("pg_publication", "pg_publication_rel"):
        admin.execute(sql.SQL("VACUUM (FULL, FREEZE) {}").format(sql.Identifier(table)))
    assert planned == [fingerprint(capture, publication)]


def test_nothing_happens_if_before_commit_fails(
    publication: str, orders: TableInfo, capture: Connection, app: Connection
) -> None:
    before = fingerprint(capture, publication)

    def fail(_: Fingerprint) -> None:
        raise StoreError("the store is full")

    with pytest.raises(StoreError, match="the store is full"):
        _add(capture, orders, fail)
    assert fingerprint(capture, publication) == before
    app.execute("INSERT INTO orders VALUES (1)")


def test_a_store_that_hangs_does_not_hold_up_writers_for_long(
    publication: str,
    orders: TableInfo,
    capture: Connection,
    admin: Connection,
    app: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.postgres.table_lock.HELD_MS_MAX", 100)

    def hang(_: Fingerprint) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        while admin.execute(query, (capture.info.backend_pid,)).fetchone() != (0,):
            pass

    with pytest.raises(SourceError) as caught:
        _add(capture, orders, hang)
    assert caught.value.retry
    app.execute("INSERT INTO orders VALUES (1)")
    unchanged = fingerprint(admin, publication)
    assert unchanged is not None and unchanged.members == ()


def test_an_empty_table_is_known_to_be_empty_as_of_a_position(
    publication: str, orders: TableInfo, capture: Connection, app: Connection
) -> None:
    app.execute("INSERT INTO orders VALUES (1)")
    app.execute("DELETE FROM orders")
    before = wal_position(capture)
    empty = _add(capture, orders)
    assert empty is not None
    assert before <= empty.position <= wal_position(capture)
    assert empty.shape.relation.qualified == "app.orders"


def test_a_table_with_rows_is_taken_beside_its_writers_and_needs_a_base(
    publication: str, orders: TableInfo, capture: Connection, app: Connection, source: Database
) -> None:
    app.execute("INSERT INTO orders VALUES (1)")
    with psycopg.connect(source.dsn) as writer:
        writer.execute("INSERT INTO app.orders VALUES (2)")
        assert _add(capture, orders, lock_timeout_ms=50) is None
        writer.execute("INSERT INTO app.orders VALUES (3)")


def test_f040_where_postgres_would_lose_changes_a_table_with_rows_is_locked(
    publication: str,
    orders: TableInfo,
    capture: Connection,
    app: Connection,
    source: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.postgres.add_table.FIXED_MINOR", {16: 99, 18: 99})
    app.execute("INSERT INTO orders VALUES (1)")
    with psycopg.connect(source.dsn) as writer:
        writer.execute("INSERT INTO app.orders VALUES (2)")
        with pytest.raises(SourceError, match="is being written"):
            _add(capture, orders, lock_timeout_ms=50)
    assert _add(capture, orders) is None


@pytest.mark.parametrize(
    ("version_num", "is_fixed"),
    [(140017, False), (140018, True), (160008, False), (160009, True), (180000, True)],
)
def test_f040_versions_that_lose_changes_are_known(version_num: int, is_fixed: bool) -> None:
    assert adds_beside_writers(version_num) is is_fixed


def test_rows_in_a_partition_are_seen_and_rows_of_a_child_are_not(
    publication: str, app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)")
    app.execute("INSERT INTO root VALUES (1)")
    app.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    app.execute("CREATE TABLE child () INHERITS (parent)")
    app.execute("INSERT INTO child VALUES (1)")
    assert _add(capture, _only(capture, "app.root")) is None
    assert _add(capture, _only(capture, "app.parent")) is not None


def test_f025_a_writer_is_named_and_the_table_tried_again(
    publication: str, orders: TableInfo, capture: Connection, app: Connection
) -> None:
    with app.transaction(force_rollback=True):
        app.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(SourceError, match=rf"pid {app.info.backend_pid} \(shop") as caught:
            _add(capture, orders, lock_timeout_ms=50)
        assert caught.value.retry
    _add(capture, orders)


def test_f025_a_prepared_writer_is_named(
    publication: str, orders: TableInfo, capture: Connection, source: Database
) -> None:
    with psycopg.connect(source.dsn) as forgetful:
        forgetful.execute("INSERT INTO app.orders VALUES (1)")
        forgetful.execute("PREPARE TRANSACTION 'forgotten'")
    with pytest.raises(SourceError, match="prepared transaction 'forgotten'"):
        _add(capture, orders, lock_timeout_ms=50)


def test_a_reader_does_not_hold_it_up(
    publication: str, orders: TableInfo, capture: Connection, app: Connection
) -> None:
    with app.transaction():
        app.execute("SELECT * FROM orders")
        _add(capture, orders, lock_timeout_ms=50)


def test_writers_wait_until_the_table_is_published(
    publication: str, orders: TableInfo, capture: Connection, capture_dsn: str, source: Database
) -> None:
    """So no transaction is published in part: it writes before the lock, or after the commit."""
    steps: list[str] = []

    def write() -> None:
        with connect(source.dsn, application_name="late") as conn:
            conn.execute("INSERT INTO app.orders VALUES (1)")
            steps.append("written")

    writer = threading.Thread(target=write)

    def start_writer(_: Fingerprint) -> None:
        writer.start()
        with connect(source.dsn) as conn:
            query = """SELECT count(*) FROM pg_stat_activity
                        WHERE application_name = 'late' AND wait_event_type = 'Lock'"""
            while conn.execute(query).fetchone() != (1,):
                assert not steps
        steps.append("published")

    _add(capture, orders, start_writer)
    writer.join()
    assert steps == ["published", "written"]


def test_a_table_that_was_altered_meanwhile_is_looked_at_again(
    publication: str, orders: TableInfo, capture: Connection, app: Connection
) -> None:
    app.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    with pytest.raises(SchemaError, match="was altered") as caught:
        _add(capture, orders)
    assert caught.value.retry


def test_f035_a_table_of_another_owner_is_refused(
    publication: str, admin: Connection, capture: Connection
) -> None:
    admin.execute("CREATE TABLE public.theirs (a int PRIMARY KEY)")
    with pytest.raises(SourceError, match=r"permission denied|must be owner") as caught:
        _add(capture, _only(capture, "public.theirs"))
    assert not caught.value.retry
    assert "tailrace check" in caught.value.hint


def test_f107_hostile_names_are_published_and_nothing_else_happens(
    publication: str, app: Connection, capture: Connection
) -> None:
    for name in HOSTILE:
        app.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(sql.Identifier(name)))
    for table in tables_matching(capture, ["app.*"]):
        _add(capture, table)
    published = fingerprint(capture, publication)
    assert published is not None
    assert {member.table for member in published.members} == {f"app.{name}" for name in HOSTILE}


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER PUBLICATION tailrace_main DROP TABLE app.orders"],
        [
            "ALTER PUBLICATION tailrace_main DROP TABLE app.orders",
            "ALTER PUBLICATION tailrace_main ADD TABLE app.orders",
        ],
        [
            "DROP PUBLICATION tailrace_main",
            "CREATE PUBLICATION tailrace_main FOR TABLE app.orders"
            " WITH (publish_via_partition_root = true)",
        ],
        ["ALTER PUBLICATION tailrace_main SET (publish = 'insert')"],
        ["DROP TABLE app.orders"],
    ],
)
def test_what_is_done_by_hand_changes_the_fingerprint(
    publication: str,
    orders: TableInfo,
    capture: Connection,
    admin: Connection,
    statements: list[str],
) -> None:
    _add(capture, orders)
    before = fingerprint(capture, publication)
    for statement in statements:
        admin.execute(statement)
    assert fingerprint(capture, publication) != before


def test_renaming_a_table_leaves_the_fingerprint_equal(
    publication: str, orders: TableInfo, capture: Connection, app: Connection
) -> None:
    _add(capture, orders)
    before = fingerprint(capture, publication)
    app.execute("ALTER TABLE orders RENAME TO purchases")
    assert fingerprint(capture, publication) == before
