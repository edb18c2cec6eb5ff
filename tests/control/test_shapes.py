"""What a buffered row is read with is what Postgres would have sent for its table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from psycopg import sql

from tailrace.control.shapes import parse_form, read_form, read_shapes
from tailrace.errors import SegmentCorrupt
from tailrace.postgres.session import Connection
from tailrace.postgres.table_shape import read_shape
from tailrace.postgres.triggers import install_triggers
from tests.buffered import changes, read_buffered, table_of, texts_of

TABLES = {
    "key": "CREATE TABLE t (a int, b text, PRIMARY KEY (b, a))",
    "no key": "CREATE TABLE t (a int, b text)",
    "full": "CREATE TABLE t (a int, b text PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY FULL",
    "full without key": "CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL",
    "nothing": "CREATE TABLE t (a int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
    "index": "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, c text); "
    "CREATE UNIQUE INDEX i ON t (b) INCLUDE (c); ALTER TABLE t REPLICA IDENTITY USING INDEX i",
    "index over the key": "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL); "
    "CREATE UNIQUE INDEX i ON t (b, a); ALTER TABLE t REPLICA IDENTITY USING INDEX i",
    "deferrable": "CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)",
    "dropped": "CREATE TABLE t (x int, a int PRIMARY KEY); ALTER TABLE t DROP x",
    "generated": "CREATE TABLE t (a int PRIMARY KEY, g int GENERATED ALWAYS AS (a + 1) STORED)",
    "identity": "CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b varchar(7))",
    "named types": "CREATE TABLE t (a int PRIMARY KEY, m mood, d price, dd dear, l mood[], p pair)",
    "partitioned": "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a)",
    "without columns": "CREATE TABLE t ()",
}

TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'o k')",
    "CREATE DOMAIN price AS numeric(8,3)",
    "CREATE DOMAIN dear AS price NOT NULL CHECK (VALUE > 1)",
    "CREATE TYPE pair AS (at timestamptz, what bytea)",
    "CREATE TYPE floats AS RANGE (subtype = float8)",
)

VALUES = {
    "padded": ("char(5)", "'ab'"),
    "limited": ("varchar(3)", "'abc'"),
    "flags": ("bit(3)", "B'101'"),
    "more_flags": ("varbit(9)", "B'10'"),
    "exact": ("numeric(9,4)", "12.5"),
    "nan": ("numeric", "'NaN'"),
    "real_one": ("real", "0.1"),
    "double_one": ("double precision", "1e300 / 3"),
    "at": ("timestamptz(3)", "'2026-01-02 03:04:05.678901+09'"),
    "day": ("date", "'0044-03-15 BC'"),
    "span": ("interval", "'1 year -2 days 03:04:05.6'"),
    "raw": ("bytea", "'\\xdeadbeef'"),
    "price_of": ("money", "12.5"),
    "letter": ('"char"', "'x'"),
    "object": ("jsonb", """'{"b": [1, null], "a": "é"}'"""),
    "listed": ("int[]", "'[0:1]={1,NULL}'"),
    "texts": ("varchar(4)[]", "ARRAY['a b', 'c']"),
    "period": ("tstzrange", "'[2026-01-01,2026-01-02)'"),
    "address": ("inet", "'10.0.0.1/8'"),
    "relation": ("regclass", "'pg_catalog.pg_class'"),
    "feeling": ("mood", "'o k'"),
    "feelings": ("mood[]", "ARRAY['o k', NULL]::mood[]"),
    "cost": ("price", "1234.5678"),
    "dear_cost": ("dear", "2"),
    "costs": ("price[]", "ARRAY[1.5, 2]::price[]"),
    "pair_of": ("pair", "ROW('2026-01-01 00:00+00', '\\x00ff')"),
    "no_pair": ("pair", "ROW(NULL, NULL)"),
    "pairs": ("pair[]", "ARRAY[ROW('2026-01-01 00:00+00', NULL)::pair]"),
    "about": ("floats", "floats(0.1, 1e300)"),
    "missing": ("mood", "NULL"),
}


@pytest.fixture
def typed(app: Connection, controlled: Connection) -> Connection:
    """A session beside types of the user's."""
    for statement in TYPES:
        app.execute(statement.encode())
    return controlled


def _execute(conn: Connection, text: str) -> None:
    conn.execute(text.encode())


@pytest.mark.parametrize("kind", TABLES)
def test_a_form_describes_the_table_as_the_stream_would(
    kind: str, app: Connection, typed: Connection
) -> None:
    for statement in TABLES[kind].split("; "):
        app.execute(statement.encode())
    oid = table_of(typed, "app.t").oid
    (form,) = typed.execute("SELECT tailrace_changes.table_form(%s)::text", (oid,)).fetchone() or (
        "",
    )
    expected = read_shape(typed, oid)
    assert expected is not None
    # Whether there is a key at all is told when the log describes the frame.
    told = replace(expected.relation, is_keyless=False)
    assert read_form(typed, oid, form).relation == told
    assert read_form(typed, oid, form).frame == expected.frame


def test_values_of_every_kind_are_kept_as_the_stream_sends_them(
    app: Connection, typed: Connection
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    _execute(app, f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    table = table_of(typed, "app.t")
    install_triggers(typed, table, lock_timeout_ms=1000)
    # What the writer has set must not show in what is kept.
    app.execute("SET DateStyle TO german; SET TimeZone TO 'Asia/Tokyo'; SET bytea_output TO escape")
    app.execute("SET extra_float_digits TO 0; SET IntervalStyle TO sql_standard")
    values = ", ".join(value for _, value in VALUES.values())
    _execute(app, f"INSERT INTO t VALUES (1, {values})")
    (row,) = texts_of(typed, sql.SQL("SELECT * FROM app.t").format())
    app.execute("UPDATE t SET id = 2")
    app.execute("ALTER TABLE t ADD later int")
    app.execute("UPDATE t SET id = 3")
    assert changes(typed, table.oid) == [
        ("I", row, None),
        ("U", {**row, "id": "2"}, row),
        ("U", {**row, "id": "3", "later": None}, {**row, "id": "2", "later": None}),
    ]
    assert [each.shape for each in read_buffered(typed, table.oid)] == [1, 1, 0]


@pytest.mark.parametrize("kind", ["int", "text", "bigint"])
def test_rows_of_very_wide_tables_are_kept_as_one_text(
    kind: str, app: Connection, typed: Connection
) -> None:
    names = [f"c{number}" for number in range(450)]
    columns = ", ".join(f"{name} {kind}" for name in names)
    _execute(app, f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    table = table_of(typed, "app.t")
    install_triggers(typed, table, lock_timeout_ms=1000)
    values = ", ".join(["'1234567'"] * len(names))
    _execute(app, f"INSERT INTO t VALUES (1, {values})")
    app.execute("UPDATE t SET id = 2")
    row: dict[str, str | None] = {"id": "1", **dict.fromkeys(names, "1234567")}
    assert changes(typed, table.oid) == [("I", row, None), ("U", {**row, "id": "2"}, row)]
    (shape,) = read_shapes(typed, table.oid).values()
    assert shape.row is not None


def test_equal_keys_have_equal_hashes(app: Connection, typed: Connection) -> None:
    keys = {
        "a bigint": "5",
        "a text": "'k'",
        "a varchar(9)": "'k'",
        "a date": "'2026-01-01'",
        "a uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "a mood": "'sad'",
        "a price": "3",
        "a boolean": "true",
        "a timestamptz": "'2026-01-01'",
    }
    for key, value in keys.items():
        _execute(app, f"CREATE TABLE t ({key}, b int, v int, PRIMARY KEY (a))")
        _execute(app, f"CREATE TABLE u ({key}, b int, v int, PRIMARY KEY (a, b))")
        for name in ("t", "u"):
            table = table_of(typed, f"app.{name}")
            install_triggers(typed, table, lock_timeout_ms=1000)
            _execute(app, f"INSERT INTO {name} VALUES ({value}, 1)")
            app.execute("SET TimeZone TO 'Asia/Tokyo'; SET DateStyle TO german")
            _execute(app, f"UPDATE {name} SET v = 1")
            app.execute("RESET TimeZone; RESET DateStyle")
            _execute(app, f"DELETE FROM {name}")
            first, *others = [row.key_hash for row in read_buffered(typed, table.oid)]
            assert first is not None and others == [first, first], key
        app.execute("DROP TABLE t, u")


@pytest.mark.parametrize("form", ["", "[]", "{}", '{"schema": "a"}'])
def test_a_form_that_cannot_be_read_is_refused(form: str) -> None:
    with pytest.raises(SegmentCorrupt):
        parse_form(1, form)
