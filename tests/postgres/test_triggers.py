"""Triggers put every change of a table into its buffer, typed, whoever writes it and however."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from tailrace.control.schema import migrate
from tailrace.errors import SourceError
from tailrace.postgres.buffer import SCHEMA, buffer_name, row_trigger, truncate_trigger
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import (
    drop_buffer,
    drop_triggers,
    has_triggers,
    install_triggers,
    lock_table,
    restore_numbering,
    switch_triggers,
    trigger_problems,
)
from tests.buffered import changes, read_buffered, table_of
from tests.server import Database

WAIT_MS = 100

KILLED = """
import sys
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.session import connect
from tailrace.postgres.triggers import drop_triggers, install_triggers
conn = connect(sys.argv[1])
table, = read_tables(conn, [int(sys.argv[2])])
act = drop_triggers if sys.argv[3] == "triggers.after_drop" else install_triggers
act(conn, table, lock_timeout_ms=1000)
"""


@pytest.fixture(params=["watched", "careful"])
def owner(request: pytest.FixtureRequest, admin: Connection, capture: Connection) -> Connection:
    """Who installs capture: a superuser, whose event triggers follow DDL; or one who owns the
    tables and no more.
    """
    conn = admin if request.param == "watched" else capture
    migrate(conn)
    assert conn.execute("SELECT tailrace.watches_ddl()").fetchone() == (conn is admin,)
    return conn


@pytest.fixture
def other(source: Database, app: Connection) -> Iterator[Connection]:
    """A second session of the application."""
    with connect(source.dsn, application_name="other") as conn:
        conn.execute("SET ROLE app")
        conn.execute("SET search_path TO app")
        yield conn


def _install(owner: Connection, name: str) -> TableInfo:
    table = table_of(owner, name)
    install_triggers(owner, table, lock_timeout_ms=WAIT_MS)
    assert trigger_problems(owner, table.oid) == []
    return table


def test_every_change_is_kept_with_both_rows(owner: Connection, app: Connection) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    table = _install(owner, "app.t")
    app.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    app.execute("UPDATE t SET v = 'b' WHERE id = 1")
    app.execute("UPDATE t SET id = 3 WHERE id = 2")
    app.execute("DELETE FROM t WHERE id = 3")
    app.execute("TRUNCATE t")
    assert changes(owner, table.oid) == [
        ("I", {"id": "1", "v": "a"}, None),
        ("I", {"id": "2", "v": None}, None),
        ("U", {"id": "1", "v": "b"}, {"id": "1", "v": "a"}),
        ("U", {"id": "3", "v": None}, {"id": "2", "v": None}),
        ("D", None, {"id": "3", "v": None}),
        ("T", None, None),
    ]


def test_a_row_says_who_wrote_it_when_and_how_deep(owner: Connection, app: Connection) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    app.execute(
        """CREATE FUNCTION deeper() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN INSERT INTO app.t VALUES (NEW.id + 10); RETURN NULL; END'"""
    )
    app.execute(
        """CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW WHEN (NEW.id < 10)
           EXECUTE FUNCTION deeper()"""
    )
    table = _install(owner, "app.t")
    with app.transaction():
        row = app.execute("SELECT pg_current_xact_id()::text, now()").fetchone()
        with app.transaction():
            app.execute("INSERT INTO t VALUES (1)")
    query = psycopg.sql.SQL("SELECT DISTINCT xid::text, ts FROM tailrace_changes.{}")
    name = psycopg.sql.Identifier(f"changes_{table.oid}")
    assert owner.execute(query.format(name)).fetchall() == [row]
    assert {(each.new or {})["id"]: each.depth for each in read_buffered(owner, table.oid)} == {
        "1": 1,
        "11": 2,
    }


def test_a_rolled_back_savepoint_leaves_nothing(owner: Connection, app: Connection) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    with app.transaction():
        app.execute("INSERT INTO t VALUES (1)")
        with app.transaction(force_rollback=True):
            app.execute("INSERT INTO t VALUES (2)")
    assert changes(owner, table.oid) == [("I", {"id": "1"}, None)]


def test_f078_a_session_in_replica_role_is_captured(
    owner: Connection, app: Connection, admin: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    admin.execute("SET session_replication_role = replica")
    admin.execute("INSERT INTO app.t VALUES (1)")
    admin.execute("TRUNCATE app.t")
    admin.execute("RESET session_replication_role")
    assert changes(owner, table.oid) == [("I", {"id": "1"}, None), ("T", None, None)]


def test_f078_copy_and_copy_freeze_are_captured(owner: Connection, app: Connection) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    table = _install(owner, "app.t")
    with app.transaction():
        app.execute("TRUNCATE t")
        with app.cursor().copy("COPY t FROM STDIN (FREEZE)") as copy:
            copy.write(b"1\ta\n2\t\\N\n")
    assert changes(owner, table.oid) == [
        ("T", None, None),
        ("I", {"id": "1", "v": "a"}, None),
        ("I", {"id": "2", "v": None}, None),
    ]


def test_f078_triggers_disabled_or_dropped_by_hand_are_found(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    app.execute("ALTER TABLE t DISABLE TRIGGER ALL")
    assert trigger_problems(owner, table.oid) == [
        f"trigger tailrace_capture_row_{table.oid} on app.t is disabled",
        f"trigger tailrace_capture_truncate_{table.oid} on app.t is disabled",
    ]
    app.execute("ALTER TABLE t ENABLE TRIGGER ALL")
    problem, _ = trigger_problems(owner, table.oid)
    assert problem == f"trigger tailrace_capture_row_{table.oid} on app.t is not enabled always"
    app.execute(statement("DROP TRIGGER {} ON t", identifier(row_trigger(table.oid))))
    problem, _ = trigger_problems(owner, table.oid)
    assert problem == f"trigger tailrace_capture_row_{table.oid} on app.t is missing"
    _install(owner, "app.t")


def test_a_trigger_under_another_name_is_the_same_trigger(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    table = _install(owner, "app.t")
    for made, name in ((row_trigger, "by_row"), (truncate_trigger, "by_truncate")):
        names = (identifier(made(table.oid)), identifier(name))
        app.execute(statement("ALTER TRIGGER {} ON t RENAME TO {}", *names))
    assert trigger_problems(owner, table.oid) == []
    _install(owner, "app.t")
    app.execute("INSERT INTO t VALUES (1)")
    app.execute("TRUNCATE t")
    assert changes(owner, table.oid) == [("I", {"id": "1"}, None), ("T", None, None)]
    with owner.transaction():
        lock_table(owner, table)
        switch_triggers(owner, table, enabled=False)
    assert trigger_problems(owner, table.oid) == [
        "trigger by_row on app.low is disabled",
        "trigger by_row on app.t is disabled",
        "trigger by_truncate on app.t is disabled",
    ]
    app.execute("INSERT INTO t VALUES (2)")
    assert len(changes(owner, table.oid)) == 2
    drop_triggers(owner, table, lock_timeout_ms=WAIT_MS)
    assert not has_triggers(owner, table.oid)


def test_f078_one_partition_without_its_trigger_is_found(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    app.execute("CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)")
    table = _install(owner, "app.t")
    app.execute(
        statement("ALTER TABLE high DISABLE TRIGGER {}", identifier(row_trigger(table.oid)))
    )
    assert trigger_problems(owner, table.oid) == [
        f"trigger tailrace_capture_row_{table.oid} on app.high is disabled"
    ]
    install_triggers(owner, table, lock_timeout_ms=WAIT_MS)
    assert trigger_problems(owner, table.oid) == []


def test_a_sequence_that_hands_out_numbers_ahead_is_found_and_set_back(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    app.execute("INSERT INTO t VALUES (1)")
    name = f"{buffer_name(table.oid)}_seq_seq"
    owner.execute(statement("ALTER SEQUENCE {} CACHE 10", qualified(SCHEMA, name)))
    assert trigger_problems(owner, table.oid) == [
        f"sequence {SCHEMA}.{name} has CACHE 10, and rows lose their order"
    ]
    # This session has nine numbers in hand by now.
    app.execute("INSERT INTO t VALUES (2)")
    with owner.transaction():
        lock_table(owner, table)
        restore_numbering(owner, table.oid)
    assert trigger_problems(owner, table.oid) == []
    owner.execute("INSERT INTO app.t VALUES (3)")
    app.execute("INSERT INTO t VALUES (4)")
    news = [new for _, new, _ in changes(owner, table.oid)]
    assert news == [{"id": str(each)} for each in (1, 2, 3, 4)]


def test_f080_roles_without_rights_on_our_schemas_may_write(
    owner: Connection, app: Connection, admin: Connection, source: Database
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    admin.execute("CREATE ROLE clerk LOGIN")
    app.execute("GRANT USAGE ON SCHEMA app TO clerk")
    app.execute("GRANT INSERT, UPDATE, DELETE, SELECT ON t TO clerk")
    with connect(psycopg.conninfo.make_conninfo(source.dsn, user="clerk")) as clerk:
        clerk.execute("INSERT INTO app.t VALUES (1)")
        clerk.execute("UPDATE app.t SET id = 2")
        clerk.execute("DELETE FROM app.t")
    assert [op for op, *_ in changes(owner, table.oid)] == ["I", "U", "D"]


def test_f080_functions_put_before_ours_are_not_called(
    owner: Connection, app: Connection, admin: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    app.execute("CREATE FUNCTION pg_trigger_depth() RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'")
    app.execute(
        "CREATE FUNCTION now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'"
    )
    app.execute("SET search_path TO app, pg_catalog")
    app.execute("INSERT INTO t VALUES (1)")
    assert changes(owner, table.oid) == [("I", {"id": "1"}, None)]


def test_f080_a_cast_of_the_users_own_type_does_not_run_with_our_rights(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    app.execute(
        """CREATE FUNCTION told(mood) RETURNS json LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'called as %', current_user; END $$"""
    )
    app.execute("CREATE CAST (mood AS json) WITH FUNCTION told(mood)")
    app.execute("CREATE TABLE t (id int PRIMARY KEY, m mood)")
    table = _install(owner, "app.t")
    with app.transaction():
        # Then no event trigger can make the function fit: the row is kept whole.
        app.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        app.execute("ALTER TABLE t ADD x int")
        app.execute("INSERT INTO t VALUES (1, 'glad', 2)")
    assert changes(owner, table.oid) == [("I", {"id": "1", "m": "glad", "x": "2"}, None)]


def test_f080_hostile_names_are_only_names(owner: Connection, app: Connection) -> None:
    app.execute(
        """CREATE TABLE "t'; DROP TABLE x;--$body$ %I" (
               "id"";--" int PRIMARY KEY, "a'b" text, "%s" text, "$1" text, "new" text,
               "SELECT" int, "xid" int, "tg_op" text, "é😀" text)"""
    )
    table = _install(owner, 'app."t\'; DROP TABLE x;--$body$ %I"')
    app.execute(
        """INSERT INTO "t'; DROP TABLE x;--$body$ %I" VALUES (1, 'q', 'p', 'd', 'n', 5, 6)"""
    )
    app.execute("""UPDATE "t'; DROP TABLE x;--$body$ %I" SET "%s" = 'r'""")
    app.execute("""DELETE FROM "t'; DROP TABLE x;--$body$ %I" """)
    first, *_, last = changes(owner, table.oid)
    new = {'id";--': "1", "a'b": "q", "%s": "p", "$1": "d", "new": "n", "SELECT": "5", "xid": "6"}
    assert first == ("I", {**new, "tg_op": None, "é😀": None}, None)
    assert last[2] == {**new, "%s": "r", "tg_op": None, "é😀": None}


def test_partitions_are_captured_whichever_way_they_are_written(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    table = _install(owner, "app.t")
    app.execute("CREATE TABLE other (junk int, v text, id int NOT NULL)")
    app.execute("ALTER TABLE other DROP junk")
    app.execute("ALTER TABLE t ATTACH PARTITION other FOR VALUES FROM (10) TO (20)")
    app.execute("CREATE TABLE later PARTITION OF t FOR VALUES FROM (20) TO (30)")
    assert trigger_problems(owner, table.oid) == []
    app.execute("INSERT INTO t VALUES (1, 'a'), (11, 'b'), (21, 'c')")
    app.execute("INSERT INTO other (id, v) VALUES (12, 'd')")
    app.execute("UPDATE t SET id = 2 WHERE id = 12")
    app.execute("TRUNCATE t")
    assert changes(owner, table.oid) == [
        ("I", {"id": "1", "v": "a"}, None),
        ("I", {"id": "11", "v": "b"}, None),
        ("I", {"id": "21", "v": "c"}, None),
        ("I", {"id": "12", "v": "d"}, None),
        ("D", None, {"id": "12", "v": "d"}),
        ("I", {"id": "2", "v": "d"}, None),
        ("T", None, None),
    ]


def test_children_by_inheritance_are_tables_of_their_own(
    owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    app.execute("CREATE TABLE child (extra text) INHERITS (t)")
    table = _install(owner, "app.t")
    app.execute("INSERT INTO child VALUES (1, 'x')")
    app.execute("INSERT INTO t VALUES (2)")
    app.execute("UPDATE t SET id = id + 10")
    assert [new for _, new, _ in changes(owner, table.oid)] == [{"id": "2"}, {"id": "12"}]


def test_disabling_works_beside_readers_and_switches_every_partition(
    owner: Connection, app: Connection, other: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    table = _install(owner, "app.t")
    with other.transaction():
        other.execute("SELECT * FROM t")
        for number, enabled in enumerate((False, True, False)):
            with owner.transaction():
                lock_table(owner, table)
                switch_triggers(owner, table, enabled=enabled)
            app.execute("INSERT INTO low VALUES (%s)", (number,))
    assert changes(owner, table.oid) == [("I", {"id": "1"}, None)]
    assert len(trigger_problems(owner, table.oid)) == 3


def test_a_lock_that_is_not_won_names_who_has_it(
    owner: Connection, app: Connection, other: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = table_of(owner, "app.t")
    with other.transaction():
        other.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(SourceError, match=r"app\.t is in use: pid .*other") as raised:
            install_triggers(owner, table, lock_timeout_ms=1)
        assert raised.value.retry
    assert not has_triggers(owner, table.oid)
    _install(owner, "app.t")


def test_what_was_installed_can_be_removed(owner: Connection, app: Connection) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = _install(owner, "app.t")
    drop_triggers(owner, table, lock_timeout_ms=WAIT_MS)
    drop_buffer(owner, table.oid, lock_timeout_ms=WAIT_MS)
    app.execute("INSERT INTO t VALUES (1)")
    left = "SELECT count(*) FROM pg_class WHERE relname = %s"
    assert owner.execute(left, (f"changes_{table.oid}",)).fetchone() == (0,)
    assert not has_triggers(owner, table.oid)
    drop_triggers(owner, table, lock_timeout_ms=WAIT_MS)


def test_a_dropped_table_does_not_ask_for_our_leave(owner: Connection, app: Connection) -> None:
    app.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    app.execute("CREATE DOMAIN amount AS int CHECK (VALUE > 0) NOT NULL")
    app.execute("CREATE TABLE t (id int PRIMARY KEY, m mood, a amount)")
    table = _install(owner, "app.t")
    app.execute("INSERT INTO t VALUES (1, 'ok', 5)")
    app.execute("DROP TABLE t")
    app.execute("DROP TYPE mood")
    app.execute("DROP DOMAIN amount")
    assert changes(owner, table.oid) == [("I", {"id": "1", "m": "ok", "a": "5"}, None)]


def test_dropping_the_control_schema_by_hand_does_not_harm_writers(
    owner: Connection, app: Connection, admin: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    _install(owner, "app.t")
    admin.execute("DROP SCHEMA tailrace CASCADE")
    app.execute("INSERT INTO t VALUES (1)")
    app.execute("ALTER TABLE t ADD v text")
    app.execute("UPDATE t SET id = 2")
    admin.execute("DROP SCHEMA tailrace_changes CASCADE")
    app.execute("DELETE FROM t")
    app.execute("TRUNCATE t")


def test_who_writes_a_partition_directly_does_not_wait_for_the_root(
    owner: Connection, app: Connection, other: Connection
) -> None:
    """A lock on the root, taken after one on the partition, would be a deadlock in waiting."""
    app.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    table = _install(owner, "app.t")
    # Postgres itself looks at the root once, for the bounds of the partition.
    app.execute("INSERT INTO low VALUES (0)")
    with other.transaction():
        other.execute("LOCK TABLE ONLY t IN ACCESS EXCLUSIVE MODE")
        app.execute("INSERT INTO low VALUES (1)")
        with app.transaction():
            app.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            app.execute("INSERT INTO low VALUES (2)")
    rows = [{"id": "0"}, {"id": "1"}, {"id": "2"}]
    assert [new for _, new, _ in changes(owner, table.oid)] == rows


@pytest.mark.parametrize(
    "place", ["triggers.after_buffer", "triggers.before_commit", "triggers.after_drop"]
)
def test_f076_killed_at_any_step_triggers_are_there_or_not_and_can_be_made_and_dropped(
    place: str, owner: Connection, app: Connection
) -> None:
    app.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = table_of(owner, "app.t")
    if place == "triggers.after_drop":
        _install(owner, "app.t")
    environment = {**os.environ, "TAILRACE_FAILPOINT": place}
    arguments = [sys.executable, "-c", KILLED, owner.info.dsn, str(table.oid), place]
    assert subprocess.run(arguments, env=environment).returncode == 137
    app.execute("INSERT INTO t VALUES (1)")
    _install(owner, "app.t")
    app.execute("INSERT INTO t VALUES (2)")
    assert ("I", {"id": "2"}, None) in changes(owner, table.oid)
    drop_triggers(owner, table, lock_timeout_ms=WAIT_MS)
    drop_buffer(owner, table.oid, lock_timeout_ms=WAIT_MS)
    assert not has_triggers(owner, table.oid)
