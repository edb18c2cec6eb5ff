"""Every value of every type arrives exactly, and Postgres itself is the judge.

A value is in its typed column, and Postgres reads that as the same value, or its column is NULL and
its exact text is in `_text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.decode import arrow_schema
from tests.decode.slot import Slot
from tests.server import Database

# For each type: the Arrow type, values that it holds, and values that it cannot hold.
TYPES: dict[str, tuple[pa.DataType, Sequence[str], Sequence[str]]] = {
    "bool": (pa.bool_(), ["true", "false"], []),
    "int2": (pa.int16(), ["-32768", "0", "32767"], []),
    "int4": (pa.int32(), ["-2147483648", "-1", "2147483647"], []),
    "int8": (pa.int64(), ["-9223372036854775808", "7", "9223372036854775807"], []),
    "float4": (
        pa.float32(),
        ["0.1", "-0", "3.4028235e38", "1e-45", "16777217", "NaN", "Infinity", "-Infinity"],
        [],
    ),
    "float8": (
        pa.float64(),
        ["0.1", "-0", "1.7976931348623157e308", "5e-324", "1e15", "NaN", "Infinity", "-Infinity"],
        [],
    ),
    "numeric(12,2)": (
        pa.decimal128(12, 2),
        ["9999999999.99", "-9999999999.99", "0", "0.05", "-0.05"],
        ["NaN"],
    ),
    "numeric(38,0)": (pa.decimal128(38, 0), ["9" * 38, "-" + "9" * 38, "0"], ["NaN"]),
    "numeric(38,38)": (pa.decimal128(38, 38), ["0." + "9" * 38, "-1e-38", "0"], ["NaN"]),
    "numeric": (
        pa.string(),
        ["1e100", "NaN", "Infinity", "-Infinity", "0.1", "1.10", "9" * 131072, "1e-16383"],
        [],
    ),
    "numeric(5,-2)": (pa.string(), ["1234500", "NaN"], []),
    "numeric(2,4)": (pa.string(), ["0.0099"], []),
    "numeric(39,2)": (pa.string(), ["9" * 37 + ".99", "NaN"], []),
    "text": (pa.string(), ["", "größe 🎉 العربية", "a\nb\tc\\d", "NULL", "x" * 20_000], []),
    "varchar(5)": (pa.string(), ["", "abcde"], []),
    "char(5)": (pa.string(), ["", "ab", "abcde"], []),
    "bytea": (pa.binary(), ["\\x", "\\x00", "\\xdeadbeefff", "\\x5c78"], []),
    "date": (
        pa.date32(),
        ["0001-01-01", "1970-01-01", "2026-01-15", "9999-12-31"],
        ["infinity", "-infinity", "0044-03-15 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31"],
    ),
    "timestamp": (
        pa.timestamp("us"),
        ["0001-01-01 00:00:00", "2026-01-15 10:00:00.5", "9999-12-31 23:59:59.999999"],
        ["infinity", "-infinity", "0044-03-15 10:00 BC", "294276-12-31 23:59:59.999999"],
    ),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        ["0001-01-01 00:00:00+00", "2026-01-15 10:00:00.123456+05:30", "1969-12-31 23:59:59.1+00"],
        ["infinity", "-infinity", "0044-03-15 10:00+00 BC", "10000-01-01 00:00:00+00"],
    ),
    "time": (pa.string(), ["00:00", "24:00:00", "23:59:59.999999"], []),
    "timetz": (pa.string(), ["24:00:00+05", "10:00:00.5-08:30"], []),
    "interval": (pa.string(), ["1 year -2 mons +3 days 04:05:06.7", "-178000000 years", "0"], []),
    "uuid": (pa.string(), ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], []),
    "json": (pa.string(), ['{"b" : 1,  "a": "\\u0000"}', "null", '"\\ud800"'], []),
    "jsonb": (pa.string(), ['{"b": 1, "a": [1.0, null]}', "null"], []),
    "int[]": (pa.string(), ["{}", "{1,NULL,3}", "[2:3]={1,2}", "{{1},{2}}"], []),
    "text[]": (pa.string(), ['{"a,b","NULL",NULL,""}'], []),
    "mood": (pa.string(), ["happy", "so so"], []),
    "positive": (pa.string(), ["1"], []),
    "few": (pa.string(), ["{1,2}"], []),
    "pair": (pa.string(), ['(1,"a,b")', "(,)"], []),
    "int4range": (pa.string(), ["empty", "[1,3)", "(,)"], []),
    "int4multirange": (pa.string(), ["{}", "{[1,2),[5,9)}"], []),
    "money": (pa.string(), ["-12.34"], []),
    "bit(4)": (pa.string(), ["0101"], []),
    "varbit": (pa.string(), ["", "10"], []),
    "inet": (pa.string(), ["::1", "10.0.0.1/8"], []),
    "point": (pa.string(), ["(1.5,-0)"], []),
    "pg_lsn": (pa.string(), ["16/B374D848"], []),
    "tsvector": (pa.string(), ["'a':1 'b'"], []),
    '"char"': (pa.string(), ["a", ""], []),
    "oid": (pa.string(), ["4294967295"], []),
}


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect() as opened:
        opened.execute("CREATE TYPE mood AS ENUM ('happy', 'so so')")
        opened.execute("CREATE TYPE pair AS (a int, b text)")
        opened.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
        opened.execute("CREATE DOMAIN few AS int[]")
        yield opened


def test_f063_every_value_of_every_type_arrives_exactly(connection: psycopg.Connection) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(name)) for name in TYPES
    )
    connection.execute(sql.SQL("CREATE TABLE edge (id serial PRIMARY KEY, {})").format(columns))
    slot = Slot.create(connection)
    for name, (_, held, unheld) in TYPES.items():
        insert = sql.SQL("INSERT INTO edge ({}) VALUES (%s)").format(sql.Identifier(name))
        for value in (*held, *unheld, None):
            connection.execute(insert, [value])
    (changes,) = slot.changes()
    schema = arrow_schema(changes.relation)
    assert {name: schema.field(name).type for name in TYPES} == {
        name: kind for name, (kind, _, _) in TYPES.items()
    }
    rows = iter(changes.rows.to_pylist())
    for name, (_, held, unheld) in TYPES.items():
        for value in (*held, *unheld, None):
            row = next(rows)
            _judge(connection, row, name)
            kept = [] if row["_text"] is None else [key for key, _ in row["_text"]]
            assert kept == ([name] if value in unheld else [])


def _judge(connection: psycopg.Connection, row: dict[str, Any], name: str) -> None:
    """Compare one value with what Postgres itself has in that row."""
    column, kind = sql.Identifier(name), sql.SQL(name)
    select = sql.SQL("SELECT {}::text FROM edge WHERE id = %s").format(column)
    (expected,) = connection.execute(select, [row["id"]]).fetchone() or ()
    if row["_text"] is not None:
        assert row[name] is None
        assert dict(row["_text"]) == {name: expected}
    elif isinstance(row[name], str):
        # Compared as sent: text to char(n) and back would lose blanks.
        (sent,) = (
            connection.execute(
                sql.SQL("SELECT format('%%s', {}) FROM edge WHERE id = %s").format(column),
                [row["id"]],
            ).fetchone()
            or ()
        )
        assert row[name] == sent
    else:
        back = sql.SQL("SELECT (%s::{})::text").format(kind)
        assert connection.execute(back, [row[name]]).fetchone() == (expected,)


def test_f065_old_values_that_no_type_holds_are_kept_beside_the_new_ones(
    connection: psycopg.Connection,
) -> None:
    connection.execute("CREATE TABLE item (until date PRIMARY KEY, size numeric(4,2))")
    slot = Slot.create(connection)
    connection.execute("INSERT INTO item VALUES ('infinity', 'NaN')")
    connection.execute("UPDATE item SET until = '0044-03-15 BC'")
    connection.execute("DELETE FROM item")
    inserted, updated, deleted = slot.rows("public.item")
    assert inserted["_text"] == [("until", "infinity"), ("size", "NaN")]
    assert updated["_text"] == [
        ("until", "0044-03-15 BC"),
        ("size", "NaN"),
        ("_before.until", "infinity"),
    ]
    assert updated["_before"] == {"until": None, "size": None}
    assert deleted["_text"] == [("until", "0044-03-15 BC"), ("_before.until", "0044-03-15 BC")]


def test_f066_bytes_of_no_encoding_are_kept_as_hex(database: Database) -> None:
    name = sql.Identifier(f"{database.name}_ascii")
    with database.connect() as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(
                name
            )
        )
        try:
            dsn = make_conninfo(database.dsn, dbname=f"{database.name}_ascii")
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
                slot = Slot.create(connection)
                connection.execute(r"INSERT INTO item VALUES (1, 'plain'), (2, E'caf\351')")
                connection.execute(
                    "INSERT INTO item VALUES (3, convert_from('\\xc3a9', 'SQL_ASCII'))"
                )
                rows = slot.rows("public.item")
                connection.execute("SELECT pg_drop_replication_slot('decode_test')")
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
    assert [(row["name"], row["_text"]) for row in rows] == [
        ("plain", None),
        (None, [("name", "\\x636166e9")]),
        ("é", None),
    ]
