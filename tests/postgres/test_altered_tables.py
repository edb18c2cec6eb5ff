"""Whatever is done to a table's columns, no transaction of the application fails because of us, and
what is captured is what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from psycopg import sql

from tailrace.control.schema import migrate
from tailrace.errors import SourceError
from tailrace.postgres.buffer import buffer
from tailrace.postgres.catalog import TableInfo, read_tables
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import (
    install_triggers,
    shape_is_current,
    sync_capture,
    trigger_problems,
)
from tests.buffered import WHOLE, Texts, read_buffered, table_of, texts_of
from tests.server import Database

PLAIN = "CREATE TABLE t (id int PRIMARY KEY, a varchar(5) DEFAULT 'a', n numeric(6,2), g text)"
PARTITIONED = (
    f"{PLAIN} PARTITION BY RANGE (id); "
    "CREATE TABLE odd (g text, n numeric(6,2), id int NOT NULL, a varchar(5)); "
    "ALTER TABLE t ATTACH PARTITION odd FOR VALUES FROM (0) TO (10); "
    "CREATE TABLE rest PARTITION OF t DEFAULT"
)
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); "
    "CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0); "
)

DDL = {
    "added": "ALTER TABLE t ADD c int DEFAULT 7",
    "added twice": "ALTER TABLE t ADD c int; ALTER TABLE t ADD d timestamptz DEFAULT now()",
    "dropped": "ALTER TABLE t DROP g",
    "dropped first": "ALTER TABLE t DROP a",
    "dropped and added again": "ALTER TABLE t DROP g; ALTER TABLE t ADD g int DEFAULT 3",
    "renamed": "ALTER TABLE t RENAME a TO b",
    "exchanged": "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME g TO a",
    "retyped": "ALTER TABLE t ALTER g TYPE int USING 5",
    "retyped without rewrite": "ALTER TABLE t ALTER a TYPE text",
    "widened": "ALTER TABLE t ALTER a TYPE varchar(50), ALTER a SET DEFAULT 'longer than five'",
    "more digits": "ALTER TABLE t ALTER n TYPE numeric(12,4), ALTER n SET DEFAULT 12345.6789",
    "generated": "ALTER TABLE t ADD c int GENERATED ALWAYS AS (id + 1) STORED",
    "typed by the user": "ALTER TABLE t ADD c positive DEFAULT 3, ADD m mood DEFAULT 'ok'",
    "another key": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, a)",
    "identity": "ALTER TABLE t REPLICA IDENTITY FULL",
    "renamed table": "ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u",
    "moved table": "CREATE SCHEMA b; ALTER TABLE t SET SCHEMA b; CREATE VIEW t AS TABLE b.t",
    "type of a column dropped": "ALTER TABLE t ADD c mood; DROP TYPE mood CASCADE",
    "name kept for another": "ALTER TABLE t RENAME TO u; CREATE TABLE v (id int); "
    "ALTER TABLE v RENAME TO t; DROP TABLE t; ALTER TABLE u RENAME TO t",
}


@pytest.fixture(params=["watched", "careful"])
def owner(request: pytest.FixtureRequest, admin: Connection, capture: Connection) -> Connection:
    """Who installs capture: one whose event triggers follow DDL, or one who may not have any."""
    conn = admin if request.param == "watched" else capture
    migrate(conn)
    return conn


@pytest.fixture
def other(source: Database, app: Connection) -> Iterator[Connection]:
    """A second session of the application."""
    with connect(source.dsn, application_name="other") as conn:
        conn.execute("SET ROLE app")
        conn.execute("SET search_path TO app")
        yield conn


@pytest.fixture(params=["plain", "partitioned"])
def make(
    request: pytest.FixtureRequest,
    owner: Connection,
    app: Connection,
    admin: Connection,
    other: Connection,
) -> Callable[[], TableInfo]:
    """Makes a captured table anew that two sessions have written before."""
    right = sql.SQL("GRANT CREATE ON DATABASE {} TO app")
    admin.execute(right.format(sql.Identifier(app.info.dbname)))

    def made() -> TableInfo:
        _alter(app, "DROP SCHEMA IF EXISTS b CASCADE; DROP SCHEMA app CASCADE; CREATE SCHEMA app")
        _alter(app, TYPES + (PLAIN if request.param == "plain" else PARTITIONED))
        table = table_of(owner, "app.t")
        install_triggers(owner, table, lock_timeout_ms=1000)
        for conn in (app, other):
            conn.execute("INSERT INTO t (id) VALUES (1)")
            conn.execute("UPDATE t SET id = 100")
            conn.execute("DELETE FROM t")
        return table

    return made


@pytest.fixture
def table(make: Callable[[], TableInfo]) -> TableInfo:
    """One such table."""
    return make()


def _alter(conn: Connection, statements: str) -> None:
    for each in statements.split("; "):
        conn.execute(each.encode())


def _write(conn: Connection, oid: int, first: int) -> list[object]:
    """Insert, update and delete; what the buffer must say of it."""
    conn.execute("INSERT INTO t (id) VALUES (%s)", (first,))
    inserted = _only_row(conn, oid)
    conn.execute("UPDATE t SET id = id + 5")
    updated = _only_row(conn, oid)
    conn.execute("DELETE FROM t")
    return [("I", inserted, None), ("U", updated, inserted), ("D", None, updated)]


def _only_row(conn: Connection, oid: int) -> Texts:
    """Of the captured columns."""
    carried = """SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attnum > 0
                    AND NOT attisdropped AND attgenerated = ''"""
    names = {name for (name,) in conn.execute(carried, (oid,))}
    (row,) = texts_of(conn, sql.SQL("SELECT * FROM {}").format(_name(conn, oid)))
    return {name: text for name, text in row.items() if name in names}


def _name(conn: Connection, oid: int) -> sql.Identifier:
    (table,) = read_tables(conn, [oid])
    return sql.Identifier(table.schema, table.name)


def _sync(owner: Connection, oid: int) -> None:
    sync_capture(owner, read_tables(owner, [oid])[0], lock_timeout_ms=1000)
    assert shape_is_current(owner, oid)


def _captured(conn: Connection, oid: int, after: int) -> list[object]:
    return [(row.op, row.new, row.old) for row in read_buffered(conn, oid)[after:]]


def test_f079_writers_go_on_after_a_change_of_columns(
    owner: Connection, app: Connection, other: Connection, make: Callable[[], TableInfo]
) -> None:
    for what, statements in DDL.items():
        oid = make().oid
        before = len(read_buffered(owner, oid))
        _alter(app, statements)
        expected = _write(app, oid, 2) + _write(other, oid, 3)
        _sync(owner, oid)
        expected += _write(other, oid, 4)
        assert _captured(owner, oid, before) == expected, what
        assert read_buffered(owner, oid)[-1].shape != WHOLE, what
        assert trigger_problems(owner, oid) == [], what


def test_f079_a_transaction_may_alter_the_table_between_its_writes(
    owner: Connection, app: Connection, make: Callable[[], TableInfo]
) -> None:
    for what in ("added", "dropped", "renamed", "retyped", "more digits"):
        oid = make().oid
        before = len(read_buffered(owner, oid))
        with app.transaction():
            expected = _write(app, oid, 2)
            _alter(app, DDL[what])
            expected += _write(app, oid, 3)
            with app.transaction(force_rollback=True):
                _alter(app, "ALTER TABLE t ADD passing int DEFAULT 1")
                _write(app, oid, 4)
            expected += _write(app, oid, 4)
        assert _captured(owner, oid, before) == expected, what


def test_f079_a_writer_that_sees_the_catalog_as_it_was_does_not_fail(
    owner: Connection, app: Connection, other: Connection, make: Callable[[], TableInfo]
) -> None:
    """What it writes is captured, or a row says that nobody can tell and a base is due."""
    for what in ("added", "dropped", "renamed", "retyped", "retyped without rewrite"):
        oid = make().oid
        before = len(read_buffered(owner, oid))
        with other.transaction():
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT * FROM pg_class LIMIT 1")
            _alter(app, DDL[what])
            other.execute("INSERT INTO t (id) VALUES (2)")
        expected = ("I", _only_row(app, oid), None)
        query = sql.SQL("SELECT count(*) FROM {} WHERE shape IS NULL")
        if owner.execute(query.format(buffer(oid))).fetchone() == (0,):
            assert _captured(owner, oid, before) == [expected], what
        else:
            assert owner.execute("SELECT tailrace.watches_ddl()").fetchone() == (False,)
        other.execute("DELETE FROM t")
        _sync(owner, oid)
        assert len(_write(other, oid, 3)) == 3


def test_f079_a_buffer_that_is_in_use_does_not_hold_up_ddl(
    owner: Connection, app: Connection, other: Connection, table: TableInfo, source: Database
) -> None:
    before = len(read_buffered(owner, table.oid))
    with connect(source.dsn) as drain, drain.transaction():
        drain.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(buffer(table.oid)))
        app.execute("ALTER TABLE t ADD c int DEFAULT 7")
        expected = _write(app, table.oid, 2) + _write(other, table.oid, 3)
        assert not shape_is_current(owner, table.oid)
        with pytest.raises(SourceError) as raised:
            sync_capture(owner, table, lock_timeout_ms=1)
        assert raised.value.retry
        app.execute("TRUNCATE t")
        expected += [("T", None, None)]
    _sync(owner, table.oid)
    expected += _write(other, table.oid, 4)
    assert _captured(owner, table.oid, before) == expected


def test_rights_that_are_taken_away_do_not_harm_writers(
    owner: Connection, app: Connection, admin: Connection, table: TableInfo
) -> None:
    before = len(read_buffered(admin, table.oid))
    admin.execute("REVOKE app FROM capture")
    expected = _write(app, table.oid, 2)
    assert _captured(admin, table.oid, before) == expected
