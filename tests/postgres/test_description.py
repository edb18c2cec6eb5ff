"""What the catalog adds to Relation frames, also to those that it has left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from psycopg import sql

from tailrace.model import NamedType, PgType, Relation
from tailrace.postgres.description import describe
from tailrace.postgres.named_types import read_named_types
from tailrace.postgres.pgoutput import parse_relation
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.table_shape import read_shape
from tests.decode.slot import Slot
from tests.postgres.names import HOSTILE
from tests.server import Database

NUMERIC_12_2 = ((12 << 16) | 2) + 4


@pytest.fixture
def conn(database: Database) -> Iterator[Connection]:
    with database.connect() as opened:
        opened.execute("CREATE DOMAIN price AS numeric(12,2)")
        opened.execute("CREATE DOMAIN discount AS price CHECK (VALUE < 0)")
        opened.execute("CREATE DOMAIN few AS int[]")
        opened.execute("CREATE TYPE mood AS ENUM ('calm')")
        yield opened


@pytest.fixture
def pinned(database: Database) -> Iterator[Connection]:
    with connect(database.dsn) as opened:
        yield opened


def _frames(slot: Slot) -> list[Relation]:
    """The relations as the stream gave them, in order."""
    frames = slot.frames()
    found = [frames.frame(place) for place in range(len(frames))]
    return [parse_relation(frame) for frame in found if frame[:1] == b"R"]


def _oid(conn: Connection, name: str) -> int:
    (oid,) = conn.execute("SELECT %s::regtype::oid::bigint", [name]).fetchone() or ()
    return int(oid)


def test_a_domain_is_followed_to_the_type_under_it(conn: Connection, pinned: Connection) -> None:
    names = ["price", "discount", "few", "mood", "information_schema.cardinal_number", "int"]
    oids = {name: _oid(conn, name) for name in names}
    found = read_named_types(pinned, oids.values())
    assert PgType.INT4 not in found
    bases = {name: found[oid][2:] for name, oid in oids.items() if oid in found}
    assert bases == {
        "price": (PgType.NUMERIC, NUMERIC_12_2),
        "discount": (PgType.NUMERIC, NUMERIC_12_2),
        "few": (1007, -1),
        "mood": (0, -1),
        "information_schema.cardinal_number": (PgType.INT4, -1),
    }


def test_f060_types_of_a_shape_that_is_gone_are_still_known(
    conn: Connection, pinned: Connection
) -> None:
    conn.execute("CREATE TABLE item (id int PRIMARY KEY, cost price, feels mood)")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO item VALUES (1, 2.50, 'calm')")
    conn.execute("ALTER TABLE item REPLICA IDENTITY FULL")
    conn.execute("INSERT INTO item VALUES (2, 2.50, 'calm')")
    first, full = _frames(slot)
    assert (first.key, full.key) == (("id",), ("id", "cost", "feels"))
    price, mood = _oid(conn, "price"), _oid(conn, "mood")
    types = (
        NamedType(price, "public.price", PgType.NUMERIC, NUMERIC_12_2),
        NamedType(mood, "public.mood"),
    )
    assert describe(pinned, [first, full]) == [
        replace(first, key=("id",), type_names=types),
        replace(full, key=("id",), type_names=types),
    ]
    conn.execute("ALTER TABLE item DROP COLUMN cost")
    assert describe(pinned, [first]) == [replace(first, type_names=types)]
    conn.execute("DROP TABLE item")
    assert describe(pinned, [first]) == [replace(first, type_names=types)]
    conn.execute("DROP TYPE mood; DROP DOMAIN price CASCADE")
    from_stream = (NamedType(price, "pg_catalog.numeric", PgType.NUMERIC),)
    bare = replace(first, type_names=from_stream)
    assert describe(pinned, [bare, full]) == [bare, replace(full, type_names=())]


def test_f060_rows_keep_the_key_that_they_were_written_under(
    conn: Connection, pinned: Connection
) -> None:
    conn.execute("CREATE TABLE item (id int PRIMARY KEY, code int NOT NULL)")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO item VALUES (1, 10)")
    conn.execute("ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (code)")
    conn.execute("INSERT INTO item VALUES (1, 11)")
    assert [each.key for each in describe(pinned, _frames(slot))] == [("id",), ("code",)]


def test_f060_whole_old_rows_have_the_key_of_now_whatever_columns_came_since(
    conn: Connection, pinned: Connection
) -> None:
    conn.execute("CREATE TABLE item (id int PRIMARY KEY, v text)")
    conn.execute("ALTER TABLE item REPLICA IDENTITY FULL")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO item VALUES (1, 'a')")
    conn.execute("ALTER TABLE item ADD w text")
    conn.execute("INSERT INTO item VALUES (2, 'b', 'c')")
    assert [each.key for each in describe(pinned, _frames(slot))] == [("id",), ("id",)]
    conn.execute("ALTER TABLE item DROP CONSTRAINT item_pkey, ADD code serial PRIMARY KEY")
    (first, *_), whole = _frames(slot), ("id", "v")
    assert [each.key for each in describe(pinned, [first])] == [whole]


def test_f052_whole_rows_of_a_table_without_a_key_are_known_as_such(
    conn: Connection, pinned: Connection
) -> None:
    conn.execute("CREATE TABLE item (id int PRIMARY KEY, v text)")
    conn.execute("CREATE TABLE loose (id int, v text)")
    conn.execute("ALTER TABLE item REPLICA IDENTITY FULL")
    conn.execute("ALTER TABLE loose REPLICA IDENTITY FULL")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO item VALUES (1, 'a')")
    conn.execute("INSERT INTO loose VALUES (1, 'a')")
    described = describe(pinned, _frames(slot))
    assert {each.name: each.is_keyless for each in described} == {"item": False, "loose": True}
    shape = read_shape(pinned, described[1].oid)
    assert shape is not None and shape.relation == described[1]


def test_f060_renamed_table_keeps_the_name_that_its_rows_were_written_under(
    conn: Connection, pinned: Connection
) -> None:
    conn.execute("CREATE TABLE item (id int PRIMARY KEY)")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO item VALUES (1)")
    conn.execute("ALTER TABLE item RENAME TO thing")
    conn.execute("INSERT INTO thing VALUES (2)")
    assert [each.name for each in describe(pinned, _frames(slot))] == ["item", "thing"]


def test_f069_hostile_names_of_types_are_read(conn: Connection, pinned: Connection) -> None:
    for name in HOSTILE:
        conn.execute(sql.SQL("CREATE DOMAIN {} AS int8").format(sql.Identifier(name)))
    oids = [oid for (oid,) in conn.execute("SELECT oid::bigint FROM pg_type WHERE typtype = 'd'")]
    found = read_named_types(pinned, oids)
    assert sum(known.base_oid == PgType.INT8 for known in found.values()) >= len(HOSTILE)
