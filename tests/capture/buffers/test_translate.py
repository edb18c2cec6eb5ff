"""Rows of buffers, as a real Postgres streams them, become the table's own frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.sql import Identifier as Name

from tailrace.capture.buffers import holding
from tailrace.capture.buffers.shapes import BufferShapes
from tailrace.capture.buffers.translate import Translator
from tailrace.control.schema import migrate
from tailrace.decode import decode
from tailrace.errors import SourceError
from tailrace.model import ORIGIN
from tailrace.postgres.buffer import buffer
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation
from tests.capture.tracked import buffer_of, control, oid_of, reshape, track, translator
from tests.decode.slot import END, Slot
from tests.server import VERSIONS, Servers


@pytest.fixture(params=VERSIONS)
def conn(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[psycopg.Connection]:
    """A connection to a fresh database on each version."""
    with source_servers(request.param).database() as database, database.connect() as connection:
        yield connection


def without(frames: Frames, *oids: int) -> Frames:
    """As if these tables were not published."""
    tags = frames.tags
    keep = np.ones(len(frames), dtype=bool)
    rows = np.flatnonzero(np.isin(tags, [Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.RELATION]))
    keep[rows] = ~np.isin(frames.integers(rows, 1, ">u4"), oids)
    for place in np.flatnonzero(tags == Tag.TRUNCATE).tolist():
        keep[place] = int(frames.integers(np.array([place]), 6, ">u4")[0]) not in oids
    return frames.select(keep)


def both_ways(
    conn: psycopg.Connection, slot: Slot, table: str = "public.t"
) -> tuple[Frames, Frames]:
    """The table's own frames, and those that its buffer becomes."""
    frames = slot.frames()
    buffer, ours = oid_of(conn, buffer_of(conn, table)), control(conn)
    buffered = without(frames, oid_of(conn, table), *ours)
    return without(frames, buffer, *ours), translator(conn).translate(buffered)


def said(frames: Frames) -> list[bytes]:
    """Every frame but Relation frames that repeat what was said: Postgres does so after DDL."""
    found: list[bytes] = []
    known: dict[bytes, bytes] = {}
    for frame in map(frames.frame, range(len(frames))):
        is_relation = frame[:1] == b"R"
        if not is_relation or known.get(frame[1:5]) != frame:
            found.append(frame)
        if is_relation:
            known[frame[1:5]] = frame
    return found


def rows_of(frames: Frames) -> list[dict[str, Any]]:
    """Decoded, without what must differ."""
    found = decode(frames, initial={}, versions={}, after=ORIGIN, upto=END)
    rows = [row for each in found for row in each.rows.to_pylist()]
    return [{name: row[name] for name in row if name != "_origin"} for row in rows]


def test_every_kind_of_change_becomes_the_frame_that_postgres_sends(
    conn: psycopg.Connection,
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b numeric(10, 2), c timestamptz)")
    track(conn, "public.t")
    slot = Slot.create(conn)
    with conn.transaction():
        conn.execute("INSERT INTO t VALUES (1, 'x', 1.50, '2026-01-01'), (2, NULL, NULL, NULL)")
        conn.execute("UPDATE t SET a = 'y' WHERE id = 1")
    conn.execute("UPDATE t SET id = 3 WHERE id = 2")
    conn.execute("DELETE FROM t WHERE id = 1")
    conn.execute("TRUNCATE t")
    streamed, buffered = both_ways(conn, slot)
    assert said(buffered) == said(streamed)
    is_row = np.isin(buffered.tags, [Tag.INSERT, Tag.UPDATE, Tag.DELETE, Tag.TRUNCATE])
    assert (buffered.is_buffered == is_row).all()
    first, *others = buffered.buffer_seqs[is_row].tolist()
    assert others == [first + 1, first + 2, first + 3, first + 4, first + 5]


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX by_code", "DEFAULT"])
def test_old_rows_are_those_of_the_replica_identity(
    conn: psycopg.Connection, identity: str
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v text)")
    conn.execute("CREATE UNIQUE INDEX by_code ON t (code)")
    conn.execute(sql.SQL("ALTER TABLE t REPLICA IDENTITY {}").format(sql.SQL(identity)))
    track(conn, "public.t")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    conn.execute("UPDATE t SET v = 'z' WHERE id = 1")
    conn.execute("UPDATE t SET code = 'c' WHERE id = 1")
    conn.execute("UPDATE t SET id = 7 WHERE id = 2")
    conn.execute("DELETE FROM t WHERE id = 7")
    streamed, buffered = both_ways(conn, slot)
    assert rows_of(buffered) == rows_of(streamed)
    assert said(buffered) == said(streamed)


def test_f079_a_row_is_read_with_the_shape_it_was_buffered_under(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    track(conn, "public.t")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    with conn.transaction():
        conn.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 5")
        reshape(conn, "public.t")
        conn.execute("INSERT INTO t VALUES (2, 'y', 6)")
    with conn.transaction():
        conn.execute("ALTER TABLE t DROP COLUMN a")
        reshape(conn, "public.t")
        conn.execute("UPDATE t SET b = 9 WHERE id = 1")
    streamed, buffered = both_ways(conn, slot)
    assert rows_of(buffered) == rows_of(streamed)
    relations = [
        parse_relation(buffered.frame(i)).column_names
        for i in np.flatnonzero(buffered.tags == Tag.RELATION).tolist()
    ]
    assert relations == [("id", "a"), ("id", "a", "b"), ("id", "b")]


def test_f079_rows_that_do_not_fit_the_buffer_are_whole_and_become_the_same_frames(
    conn: psycopg.Connection,
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b date)")
    migrate(conn)
    # As for a role that may not watch DDL.
    conn.execute("DROP EVENT TRIGGER tailrace_on_alter")
    conn.execute("DROP EVENT TRIGGER tailrace_on_drop")
    track(conn, "public.t", watches_ddl=False)
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'x', '2026-01-01'), (2, 'y', NULL)")
    conn.execute("ALTER TABLE t DROP COLUMN b, ADD COLUMN c text")
    conn.execute("INSERT INTO t VALUES (3, 'a,b \"q\" \\', '')")
    conn.execute("UPDATE t SET c = 'z', id = 5 WHERE id = 2")
    conn.execute("DELETE FROM t WHERE id = 1")
    streamed, buffered = both_ways(conn, slot)
    assert said(buffered) == said(streamed)


def test_a_row_that_nobody_can_read_asks_for_a_new_base(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    track(conn, "public.t")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    insert = (
        "INSERT INTO {} (xid, op, depth, ts, new_row) "
        "VALUES (pg_current_xact_id(), 'I', 1, now(), '(2,y)')"
    )
    conn.execute(sql.SQL(insert).format(buffer(oid_of(conn, "public.t"))))
    asked: list[tuple[int, str]] = []
    frames = without(slot.frames(), oid_of(conn, "public.t"), *control(conn))
    translating = Translator(
        BufferShapes(conn.info.dsn), want_base=lambda oid, why: asked.append((oid, why))
    )
    assert [row["id"] for row in rows_of(translating.translate(frames))] == [1]
    assert [oid for oid, _ in asked] == [oid_of(conn, "public.t")]


def test_rows_of_a_table_keep_their_shape_wherever_they_come_from(
    conn: psycopg.Connection,
) -> None:
    """Postgres sends its Relation frame once; ours between must not be taken for it."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    track(conn, "public.t")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    conn.execute("ALTER TABLE t ADD COLUMN b int")
    conn.execute("INSERT INTO t VALUES (2, 'y', 6)")
    conn.execute("INSERT INTO t VALUES (3, 'z', 7)")
    frames = without(slot.frames(), *control(conn))
    table, buffer_oid = oid_of(conn, "public.t"), oid_of(conn, buffer_of(conn, "public.t"))
    bounds = [0, *(frames.transactions.last_frame + 1).tolist()]
    each = [frames.slice(first, end) for first, end in pairwise(bounds)]
    one, two, three = (run for run in each if len(without(run, table)) < len(run))
    translating = translator(conn)

    def shapes(run: Frames) -> list[tuple[str, ...]]:
        made = translating.translate(run)
        places = np.flatnonzero(made.tags == Tag.RELATION).tolist()
        return [parse_relation(made.frame(place)).column_names for place in places]

    assert shapes(without(one, buffer_oid)) == [("id", "a")]
    assert shapes(without(two, buffer_oid)) == [("id", "a", "b")]
    assert shapes(without(one, table)) == [("id", "a")]
    assert shapes(without(three, buffer_oid)) == [("id", "a", "b")]
    assert shapes(without(two, table)) == []


def test_a_stream_without_buffers_goes_through_untouched(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    frames = slot.frames()
    assert translator(conn).translate(frames) is frames


def test_a_row_of_an_unknown_shape_is_an_error_not_a_guess(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    track(conn, "public.t")
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t VALUES (1, 'x')")
    conn.execute("TRUNCATE tailrace.table_shapes")
    frames = slot.frames()
    with pytest.raises(SourceError, match=r"shape 1 of table"):
        translator(conn).translate(frames)


TOUCHING = """
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_trigger_depth() = 1 THEN {} END IF; RETURN NULL; END $$;
CREATE TRIGGER a_touch AFTER {} ON t FOR EACH ROW EXECUTE FUNCTION touch()
"""


@pytest.mark.parametrize(
    ("when", "body", "statement"),
    [
        ("INSERT", "UPDATE t SET v = v + 100 WHERE id = 2;", "INSERT INTO t VALUES (1, 1), (2, 2)"),
        ("INSERT", "DELETE FROM t WHERE id = 2;", "INSERT INTO t VALUES (1, 1), (2, 2)"),
        (
            "INSERT",
            "UPDATE t SET id = id + 10 WHERE id = 2;",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
        ),
        (
            "UPDATE",
            "UPDATE t SET v = v + 1 WHERE id <> NEW.id;",
            "UPDATE t SET v = v + 1000 WHERE id IN (8, 9)",
        ),
    ],
)
def test_changes_by_triggers_of_the_user_come_in_the_order_they_were_made(
    conn: psycopg.Connection, when: str, body: str, statement: str
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    conn.execute("INSERT INTO t VALUES (8, 8), (9, 9)")
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    track(conn, "public.t")
    conn.execute(TOUCHING.format(body, when))
    slot = Slot.create(conn)
    conn.execute(statement)
    streamed, buffered = both_ways(conn, slot)

    def per_key(frames: Frames) -> dict[int, list[Any]]:
        changes: dict[int, list[Any]] = {}
        for row in rows_of(frames):
            before = row["_before"] and row["_before"]["v"]
            changes.setdefault(row["id"], []).append((row["_op"], before, row["v"]))
        return changes

    assert per_key(buffered) == per_key(streamed)


BOTH = "ALTER TABLE t ADD w int; TRUNCATE t; ALTER TABLE t DROP v; ALTER TABLE t ADD v int"


def parts_of(frames: Frames, row_count: int) -> list[Frames]:
    """One transaction as capture brings a large one: pieces, then its Commit."""
    last = len(frames) - 1
    cuts = [*range(0, last, row_count), last]
    return [frames.slice(first, end) for first, end in pairwise(cuts)]


@pytest.mark.parametrize("row_count", [7, 1000])
@pytest.mark.parametrize("between", ["", "TRUNCATE t", "ALTER TABLE t ADD w int", BOTH])
def test_changes_by_triggers_of_the_user_are_in_order_across_parts(
    conn: psycopg.Connection, between: str, row_count: int
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    track(conn, "public.t")
    conn.execute(TOUCHING.format("UPDATE t SET v = v + 100 WHERE id = NEW.id + 20;", "INSERT"))
    slot = Slot.create(conn)
    with conn.transaction():
        conn.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 40) AS n")
        conn.execute(between)
        conn.execute("INSERT INTO t (id, v) SELECT n, n FROM generate_series(41, 90) AS n")
        conn.execute("UPDATE t SET v = -v WHERE id > 85 OR id BETWEEN 15 AND 25")
    frames = without(slot.frames(), oid_of(conn, "public.t"), *control(conn))
    translating = translator(conn)
    pieces = [translating.translate_part(part) for part in parts_of(frames, row_count)]
    whole = [*pieces, translating.end_part(), frames.slice(len(frames) - 1, len(frames))]
    state: dict[int, int] = {}
    for row in rows_of(Frames.concat(whole)):
        if row["_op"] == "truncate":
            state.clear()
            continue
        assert (row["id"] in state) is (row["_op"] == "update"), row
        state[row["id"]] = row["v"]
    assert state == dict(conn.execute("SELECT id, v FROM t").fetchall())


def in_parts(conn: psycopg.Connection, slot: Slot, row_count: int) -> Frames:
    """What the log gets of the only transaction of a slot, which comes in parts."""
    query = "SELECT oid::bigint FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    tables = [oid for (oid,) in conn.execute(query)]
    frames = without(slot.frames(), *tables, *control(conn))
    translating = translator(conn)
    pieces = [translating.translate_part(part) for part in parts_of(frames, row_count)]
    return Frames.concat(
        [*pieces, translating.end_part(), frames.slice(len(frames) - 1, len(frames))]
    )


def folded(rows: list[dict[str, Any]]) -> dict[int, int]:
    """A table of which every change finds the row that the one before it has left."""
    state: dict[int, int] = {}
    for row in rows:
        before = row["_before"]
        if row["_op"] == "truncate":
            state.clear()
            continue
        if row["_op"] != "insert":
            assert state.pop(before["id"], None) == before["v"], row
        if row["_op"] != "delete":
            assert row["id"] not in state, row
            state[row["id"]] = row["v"]
    return state


AWAY = "UPDATE t SET id = id + 1000 WHERE id = NEW.id + 20;"


@pytest.mark.parametrize("row_count", [7, 64])
@pytest.mark.parametrize(
    ("body", "later"),
    [
        # A row that waits under its new key has let go of the old one.
        (AWAY, "INSERT INTO t SELECT n, -n FROM generate_series(21, 40) AS n"),
        # A row that waits goes on, through keys of which none waited until then.
        (AWAY, "UPDATE t SET id = id + 1000 WHERE id > 1000"),
        (
            AWAY,
            "UPDATE t SET id = id + 1000 WHERE id > 1000;"
            "INSERT INTO t SELECT n + 1000, 5 FROM generate_series(21, 40) AS n;"
            "UPDATE t SET v = v + 1 WHERE id > 2000; DELETE FROM t WHERE id > 2030",
        ),
        # What comes to a key that waits brings along the rows that come to its own.
        (
            "UPDATE t SET v = v + 1 WHERE id = 300;",
            "DELETE FROM t WHERE id = 300; UPDATE t SET id = 300 WHERE id = 5;"
            "INSERT INTO t VALUES (5, 55); UPDATE t SET id = 5000 WHERE id = 300;"
            "INSERT INTO t VALUES (300, 3)",
        ),
        ("DELETE FROM t WHERE id = NEW.id + 20;", "INSERT INTO t VALUES (35, 0); DELETE FROM t"),
    ],
)
def test_rows_that_change_their_key_beside_a_trigger_are_in_order_across_parts(
    conn: psycopg.Connection, body: str, later: str, row_count: int
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    conn.execute("INSERT INTO t VALUES (300, 0)")
    track(conn, "public.t")
    conn.execute(TOUCHING.format(body, "INSERT"))
    slot = Slot.create(conn)
    with conn.transaction():
        conn.execute("DELETE FROM t")
        conn.execute("INSERT INTO t VALUES (300, 0)")
        conn.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 40) AS n")
        conn.execute(later)
    rows = rows_of(in_parts(conn, slot, row_count))
    found = folded([{"_op": "insert", "id": 300, "v": 0, "_before": None}, *rows])
    assert found == dict(conn.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize("row_count", [5, 8])
def test_what_a_trigger_does_after_a_truncate_waits_for_the_next_parts(
    conn: psycopg.Connection, row_count: int
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    track(conn, "public.t")
    conn.execute(TOUCHING.format("UPDATE t SET v = v + 100 WHERE id = NEW.id + 20;", "INSERT"))
    slot = Slot.create(conn)
    with conn.transaction():
        conn.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 40) AS n")
        conn.execute("TRUNCATE t")
        conn.execute("INSERT INTO t SELECT n, n FROM generate_series(41, 90) AS n")
    found = folded(rows_of(in_parts(conn, slot, row_count)))
    assert found == dict(conn.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize("ends", ["TRUNCATE o", "ALTER TABLE o ADD w int"])
def test_the_end_of_waiting_of_one_table_is_not_that_of_another(
    conn: psycopg.Connection, ends: str
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    conn.execute("CREATE TABLE o (id int PRIMARY KEY, v int)")
    for table in ("t", "o"):
        conn.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(table)))
        track(conn, f"public.{table}")
    body = f"""UPDATE t SET v = v + 100 WHERE id = NEW.id + 20;
               UPDATE o SET v = v + 1; IF NEW.id = 12 THEN {ends}; END IF;"""
    conn.execute(TOUCHING.format(body, "INSERT"))
    slot = Slot.create(conn)
    with conn.transaction():
        conn.execute("INSERT INTO o VALUES (1, 1)")
        conn.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 40) AS n")
    found = decode(in_parts(conn, slot, 7), initial={}, versions={}, after=ORIGIN, upto=END)
    rows = [r for each in found if each.relation.name == "t" for r in each.rows.to_pylist()]
    assert folded(rows) == dict(conn.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize("row_count", [5, 9])
def test_rows_that_wait_go_before_those_of_another_key(
    conn: psycopg.Connection, row_count: int
) -> None:
    conn.execute("CREATE TABLE t (id int CONSTRAINT k PRIMARY KEY, v int NOT NULL)")
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    track(conn, "public.t")
    conn.execute(TOUCHING.format("UPDATE t SET v = v + 100 WHERE id = NEW.id + 20;", "INSERT"))
    slot = Slot.create(conn)
    with conn.transaction():
        conn.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 40) AS n")
        conn.execute("ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k PRIMARY KEY (v)")
        conn.execute("UPDATE t SET v = -v")
    found = folded(rows_of(in_parts(conn, slot, row_count)))
    assert found == dict(conn.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize(
    ("body", "is_torn"),
    [
        ("INSERT INTO copies VALUES (NEW.id, NEW.v);", False),
        ("UPDATE t SET v = v + 100 WHERE id = NEW.id + 20;", True),
    ],
)
def test_rows_that_cannot_wait_for_their_order_ask_for_a_new_base(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, body: str, is_torn: bool
) -> None:
    monkeypatch.setattr(holding, "HELD_BYTES_MAX", 1000)
    for table in ("t", "copies"):
        conn.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, v int)").format(Name(table)))
        track(conn, f"public.{table}")
    conn.execute(TOUCHING.format(body, "INSERT"))
    slot = Slot.create(conn)
    conn.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 60) AS n")
    tables = [oid_of(conn, "public.t"), oid_of(conn, "public.copies")]
    frames = without(slot.frames(), *tables, *control(conn))
    asked: list[int] = []
    shapes = BufferShapes(conn.info.dsn)
    translating = Translator(shapes, want_base=lambda oid, _: asked.append(oid))
    pieces = [translating.translate_part(part) for part in parts_of(frames, 7)]
    made = Frames.concat(
        [*pieces, translating.end_part(), frames.slice(len(frames) - 1, len(frames))]
    )
    assert len(rows_of(made)) == (100 if is_torn else 120)
    assert set(asked) == ({tables[0]} if is_torn else set())
