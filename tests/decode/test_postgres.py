"""What Postgres wrote is what the decoder reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import psycopg
import pytest

from tailrace.decode import decode
from tailrace.model import Lsn, Offset
from tests.decode.slot import Slot
from tests.server import Database


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect() as opened:
        yield opened


@pytest.fixture
def slot(connection: psycopg.Connection) -> Slot:
    return Slot.create(connection)


def ops(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [(row["_op"], *(row[name] for name in names)) for row in rows]


def test_insert_update_delete_and_their_place(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, name text)")
    with slot.connection.transaction():
        run("INSERT INTO item VALUES (1, 'one'), (2, NULL)")
        (xid,) = run("SELECT pg_current_xact_id()::text::bigint").fetchone() or ()
    run("UPDATE item SET name = 'uno' WHERE id = 1")
    run("DELETE FROM item WHERE id = 2")
    rows = slot.rows("public.item")
    assert ops(rows, "id", "name") == [
        ("insert", 1, "one"),
        ("insert", 2, None),
        ("update", 1, "uno"),
        ("delete", 2, None),
    ]
    assert [row["_ordinal"] for row in rows] == [0, 1, 0, 0]
    assert [row["_xid"] for row in rows[:2]] == [xid, xid]
    assert [row["_before"] for row in rows] == [None, None, None, {"id": 2, "name": None}]
    (now,) = run("SELECT now()").fetchone() or ()
    assert rows[0]["_commit_ts"] <= rows[-1]["_commit_ts"] <= now
    positions = [row["_commit_lsn"] for row in rows]
    assert positions == sorted(positions) and len(set(positions)) == 3


def test_f005_copied_rows_that_share_a_position_keep_their_ordinals(slot: Slot) -> None:
    slot.connection.execute("CREATE TABLE item (id int)")
    with slot.connection.cursor().copy("COPY item FROM STDIN") as copy:
        for number in range(500):
            copy.write_row([number])
    frames = slot.frames()
    assert len(set(frames.lsn.tolist())) < 100
    rows = slot.rows("public.item")
    assert [(row["id"], row["_ordinal"]) for row in rows] == [(n, n) for n in range(500)]
    middle = decode(
        frames, initial={}, versions={}, after=_offset(rows[199]), upto=_offset(rows[300])
    )
    assert middle[0].rows["id"].to_pylist() == list(range(200, 301))


def test_f042_only_committed_rows_are_seen(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY)")
    with slot.connection.transaction(force_rollback=True):
        run("INSERT INTO item VALUES (1)")
    with slot.connection.transaction():
        run("INSERT INTO item VALUES (2)")
        with slot.connection.transaction(force_rollback=True):
            run("INSERT INTO item VALUES (3)")
        with slot.connection.transaction():
            run("INSERT INTO item VALUES (4)")
    run(
        "DO $$ BEGIN INSERT INTO item VALUES (5); "
        "BEGIN INSERT INTO item VALUES (6), (2); EXCEPTION WHEN unique_violation THEN NULL; END; "
        "INSERT INTO item VALUES (7); END $$"
    )
    rows = slot.rows("public.item")
    assert [(row["id"], row["_ordinal"]) for row in rows] == [(2, 0), (4, 1), (5, 0), (7, 1)]


def test_f048_transactions_without_changes_give_none(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int)")
    run("CREATE UNLOGGED TABLE scratch (id int)")
    run("INSERT INTO scratch VALUES (1)")
    with slot.connection.transaction():
        run("SELECT pg_current_xact_id()")
    run("SELECT pg_logical_emit_message(true, 'tailrace.test', 'nothing')")
    assert slot.changes() == []
    run("INSERT INTO item VALUES (1)")
    assert ops(slot.rows("public.item"), "id", "_ordinal") == [("insert", 1, 0)]


def test_f049_unchanged_large_value_is_named_and_never_null(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, small text, large text)")
    run("ALTER TABLE item ALTER large SET STORAGE EXTERNAL")
    run("INSERT INTO item VALUES (1, 'a', repeat('x', 100000))")
    run("UPDATE item SET small = 'b'")
    run("UPDATE item SET large = NULL")
    _, kept, cleared = slot.rows("public.item")
    assert (kept["small"], kept["large"], kept["_unchanged"]) == ("b", None, ["large"])
    assert (cleared["large"], cleared["_unchanged"]) == (None, None)


def test_f049_full_identity_gives_the_unchanged_large_value(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, small text, large text)")
    run("ALTER TABLE item ALTER large SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
    run("INSERT INTO item VALUES (1, 'a', repeat('x', 100000))")
    run("UPDATE item SET small = 'b'")
    row = slot.rows("public.item")[-1]
    assert (row["small"], row["large"], row["_unchanged"]) == ("b", "x" * 100_000, None)
    assert row["_before"] == {"id": 1, "small": "a", "large": "x" * 100_000}


def test_f049_unchanged_large_key_is_taken_from_the_old_key(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (name text PRIMARY KEY, note text)")
    run("ALTER TABLE item ALTER name SET STORAGE EXTERNAL")
    run("INSERT INTO item VALUES (repeat('x', 2500), 'a')")
    run("UPDATE item SET note = 'b'")
    row = slot.rows("public.item")[-1]
    assert (row["name"], row["note"], row["_unchanged"]) == ("x" * 2500, "b", None)


def test_f051_key_change_gives_the_old_key_alone(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, name text)")
    run("INSERT INTO item VALUES (1, 'a')")
    run("UPDATE item SET id = 2")
    row = slot.rows("public.item")[-1]
    assert (row["id"], row["name"], row["_before"]) == (2, "a", {"id": 1, "name": None})


def test_f054_truncate_is_one_change_for_each_table_in_order(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE parent (id int PRIMARY KEY)")
    run("CREATE TABLE child (id int PRIMARY KEY REFERENCES parent)")
    with slot.connection.transaction():
        run("INSERT INTO parent VALUES (1)")
        run("INSERT INTO child VALUES (1)")
        run("TRUNCATE parent RESTART IDENTITY CASCADE")
        run("INSERT INTO parent VALUES (2)")
    parent, child = slot.rows("public.parent"), slot.rows("public.child")
    assert ops(parent, "id") == [("insert", 1), ("truncate", None), ("insert", 2)]
    assert ops(child, "id") == [("insert", 1), ("truncate", None)]
    assert sorted(row["_ordinal"] for row in parent + child) == [0, 1, 2, 3, 4]
    assert parent[-1]["_ordinal"] == 4


def test_f055_cascaded_deletes_are_present(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE parent (id int PRIMARY KEY)")
    run("CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES parent ON DELETE CASCADE)")
    run("INSERT INTO parent VALUES (1)")
    run("INSERT INTO child VALUES (10, 1), (11, 1)")
    run("DELETE FROM parent")
    deleted = [row for row in slot.rows("public.child") if row["_op"] == "delete"]
    assert sorted(row["id"] for row in deleted) == [10, 11]


def test_f056_partitions_come_as_their_root(connection: psycopg.Connection) -> None:
    slot = Slot.create(connection, via_root=True)
    run = connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    # A leaf whose columns stand in another order.
    run("CREATE TABLE low (name text, id int NOT NULL)")
    run("ALTER TABLE item ATTACH PARTITION low FOR VALUES FROM (0) TO (10)")
    run("CREATE TABLE high PARTITION OF item FOR VALUES FROM (10) TO (20)")
    run("INSERT INTO item VALUES (1, 'a'), (11, 'b')")
    run("UPDATE item SET id = 12 WHERE id = 1")
    assert {each.relation.qualified for each in slot.changes()} == {"public.item"}
    assert ops(slot.rows("public.item"), "id", "name") == [
        ("insert", 1, "a"),
        ("insert", 11, "b"),
        ("delete", 1, None),
        ("insert", 12, "a"),
    ]


def test_f058_each_row_is_read_with_the_shape_it_was_written_under(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, size numeric(6,2))")
    with slot.connection.transaction():
        run("INSERT INTO item VALUES (1, 1.5)")
        run("ALTER TABLE item ADD note text DEFAULT 'new'")
        run("INSERT INTO item VALUES (2, 2.5)")
        run("ALTER TABLE item ALTER size TYPE numeric(6,1), DROP note")
        run("INSERT INTO item VALUES (3, 3.5)")
        run("ALTER TABLE item ALTER size TYPE numeric(6,2)")
        run("INSERT INTO item VALUES (4, 4.5)")
    shapes = [each for each in slot.changes() if each.relation.name == "item"]
    assert [each.rows["_ordinal"].to_pylist() for each in shapes] == [[0], [1], [2], [3]]
    assert [str(each.rows["size"][0]) for each in shapes] == ["1.50", "2.50", "3.5", "4.50"]
    assert [("note" in each.rows.column_names) for each in shapes] == [False, True, False, False]
    assert shapes[0].relation == shapes[3].relation


def test_f058_renames_and_retypes_between_two_rows_of_one_transaction(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int PRIMARY KEY, name text, size int)")
    with slot.connection.transaction():
        run("INSERT INTO item VALUES (1, 'a', 1)")
        run('ALTER TABLE item RENAME name TO "Label"')
        run("INSERT INTO item VALUES (2, 'b', 2)")
        run("ALTER TABLE item ALTER size TYPE text USING 'now ' || size")
        run("INSERT INTO item VALUES (3, 'c', 'three')")
        # To drop a column and to add one of its name is no rename: the old values are gone.
        run('ALTER TABLE item DROP "Label", ADD "Label" date')
        run("INSERT INTO item VALUES (4, 'four', '2026-01-15')")
        run("ALTER TABLE item RENAME TO thing")
        run("UPDATE thing SET id = 5, size = 'five' WHERE id = 4")
        run("DELETE FROM thing WHERE id = 1")
        run("DROP TABLE thing")
    found = [
        (each.relation.name, row["_ordinal"], {n: row[n] for n in each.relation.column_names})
        for each in slot.changes()
        for row in each.rows.to_pylist()
    ]
    day = date(2026, 1, 15)
    assert found == [
        ("item", 0, {"id": 1, "name": "a", "size": 1}),
        ("item", 1, {"id": 2, "Label": "b", "size": 2}),
        ("item", 2, {"id": 3, "Label": "c", "size": "three"}),
        ("item", 3, {"id": 4, "size": "four", "Label": day}),
        ("thing", 4, {"id": 5, "size": "five", "Label": day}),
        ("thing", 5, {"id": 1, "size": None, "Label": None}),
    ]


def test_f069_odd_names_are_kept(slot: Slot) -> None:
    run = slot.connection.execute
    run('CREATE TABLE "Größe.x y" ("select" int PRIMARY KEY, "a""b.C" text, "_é" text)')
    run("""INSERT INTO "Größe.x y" VALUES (1, 'a', 'b')""")
    row = slot.rows("public.Größe.x y")[0]
    assert (row["select"], row['a"b.C'], row["_é"]) == (1, "a", "b")


def test_f071_messages_are_no_changes(slot: Slot) -> None:
    run = slot.connection.execute
    run("CREATE TABLE item (id int)")
    with slot.connection.transaction():
        run("INSERT INTO item VALUES (1)")
        run("SELECT pg_logical_emit_message(true, 'foreign', 'x')")
        run("SELECT pg_logical_emit_message(false, 'foreign', 'y')")
        run("INSERT INTO item VALUES (2)")
    assert ops(slot.rows("public.item"), "id", "_ordinal") == [("insert", 1, 0), ("insert", 2, 1)]


def _offset(row: dict[str, Any]) -> Offset:
    return Offset(Lsn(row["_commit_lsn"]), row["_ordinal"])
