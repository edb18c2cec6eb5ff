"""What changes rows without being streamed is found by two looks at the catalog; what does not, or
is streamed, asks for nothing.
"""

from __future__ import annotations

import pytest

from tailrace.model import Column, Relation, ReplicaIdentity
from tailrace.postgres.session import Connection
from tailrace.postgres.standing import (
    Standing,
    StandingColumn,
    passed_through,
    read_standings,
    unstreamed,
)

UNSTREAMED = {
    "attach": (
        "ALTER TABLE root ATTACH PARTITION filled FOR VALUES FROM (100) TO (200)",
        "partition app.filled was added and may have held rows",
    ),
    "attach what was truncated before": (
        "TRUNCATE other; ALTER TABLE root ATTACH PARTITION other FOR VALUES FROM (200) TO (300)",
        "partition app.other was added and may have held rows",
    ),
    "detach": ("ALTER TABLE root DETACH PARTITION leaf", "partition app.leaf was detached"),
    "drop": ("DROP TABLE leaf", "partition app.leaf was detached or dropped"),
    "detach and attach": (
        "ALTER TABLE root DETACH PARTITION leaf; INSERT INTO leaf VALUES (1);"
        " ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (2)",
        "partition app.leaf was detached for a while",
    ),
    "detach and attach above": (
        "ALTER TABLE root DETACH PARTITION middle; INSERT INTO middle VALUES (71);"
        " ALTER TABLE root ATTACH PARTITION middle FOR VALUES FROM (70) TO (80)",
        "partition app.deep was detached for a while",
    ),
    "truncate": ("TRUNCATE leaf", "partition app.leaf was truncated"),
    "truncate below": ("TRUNCATE middle", "partition app.deep was truncated"),
    "default": ("ALTER TABLE plain ADD c int DEFAULT 7", "column c was added"),
    "default of a partitioned table": ("ALTER TABLE root ADD c int DEFAULT 7", "column c was"),
    "default that varies": ("ALTER TABLE plain ADD c float DEFAULT random()", "column c was added"),
    "other type": (
        "ALTER TABLE plain ALTER v TYPE int USING length(v)",
        "column v was altered",
    ),
    "other values": ("ALTER TABLE plain ALTER v TYPE varchar(20) USING v || '!'", "v was altered"),
    "renamed column": ("ALTER TABLE plain RENAME v TO w", "column v was renamed to w"),
    "column of old": ("ALTER TABLE plain DROP v; ALTER TABLE plain ADD v text", "v was dropped"),
    "type that needs no rewrite": (
        "ALTER TABLE plain ALTER at TYPE timestamptz",
        "column at has another type",
    ),
    "number without its size": (
        "ALTER TABLE plain ALTER amount TYPE numeric",
        "column amount has another type",
    ),
    "number of too many digits": (
        "ALTER TABLE plain ALTER amount TYPE numeric(40, 2)",
        "column amount has another type",
    ),
    "renamed label": ("ALTER TYPE mood RENAME VALUE 'calm' TO 'serene'", "a type that its columns"),
    "renamed label inside": ("ALTER TYPE deep_mood RENAME VALUE 'a' TO 'b'", "a type that its"),
    "new attribute": (
        "ALTER TYPE pair ADD ATTRIBUTE third int",
        "a type that its columns are made",
    ),
    "dropped attribute": (
        "ALTER TYPE pair DROP ATTRIBUTE first",
        "a type that its columns are made",
    ),
    "other key": (
        "ALTER TABLE plain DROP CONSTRAINT plain_pkey, ADD PRIMARY KEY (v)",
        "its key was id and is now v",
    ),
    "other name": ("ALTER TABLE plain RENAME TO renamed", "it was app.plain before"),
    "other schema": ("ALTER TABLE plain SET SCHEMA public", "it was app.plain before"),
}

HARMLESS = {
    "new partition": "CREATE TABLE fresh PARTITION OF root FOR VALUES FROM (300) TO (400)",
    "attach what is empty": "ALTER TABLE root ATTACH PARTITION other FOR VALUES FROM (2) TO (3)",
    "truncate of a table": "TRUNCATE plain",
    "truncate and rewrite": "TRUNCATE plain; VACUUM FULL plain",
    "rewrite": "VACUUM FULL plain",
    "column without default": "ALTER TABLE plain ADD c int",
    "wider text": "ALTER TABLE plain ALTER v TYPE varchar(50)",
    "dropped column": "ALTER TABLE plain DROP v",
    "later default": "ALTER TABLE plain ALTER v SET DEFAULT 'x'",
    "generated column": "ALTER TABLE plain ADD c int GENERATED ALWAYS AS (id) STORED",
    "rows": "INSERT INTO root VALUES (1), (71); DELETE FROM root; UPDATE plain SET v = 'b'",
    "renamed attribute": "ALTER TYPE pair RENAME ATTRIBUTE first TO one",
    "new label": "ALTER TYPE mood ADD VALUE 'new' BEFORE 'calm'",
    "same key": "ALTER TABLE plain DROP CONSTRAINT plain_pkey, ADD PRIMARY KEY (id)",
    "more digits": "ALTER TABLE plain ALTER amount TYPE numeric(38, 2)",
    "any length": "ALTER TABLE plain ALTER v TYPE text",
    "whole old row": "ALTER TABLE plain REPLICA IDENTITY FULL",
    "renamed partition": "ALTER TABLE leaf RENAME TO sheet",
}


@pytest.fixture
def tables(app: Connection, admin: Connection) -> list[str]:
    """Of each kind one, and tables that may become partitions."""
    admin.execute("GRANT CREATE ON SCHEMA public TO app")
    for statement in (
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (2)",
        "CREATE TABLE middle PARTITION OF root FOR VALUES FROM (70) TO (80) PARTITION BY LIST (id)",
        "CREATE TABLE deep PARTITION OF middle FOR VALUES IN (71)",
        "CREATE TABLE filled (id int PRIMARY KEY, v text)",
        "INSERT INTO filled VALUES (100)",
        "CREATE TABLE other (v text, id int PRIMARY KEY)",
        "SET timezone TO 'UTC'",
        "CREATE TYPE mood AS ENUM ('calm', 'cross')",
        "CREATE TYPE deep_mood AS ENUM ('a')",
        "CREATE TYPE pair AS (first int, second deep_mood[])",
        "CREATE DOMAIN pairs AS pair[]",
        """CREATE TABLE plain (id int PRIMARY KEY, v varchar(20), at timestamp, feels mood,
                               deep pairs, amount numeric(10, 2))""",
        "INSERT INTO plain VALUES (1, 'a')",
    ):
        app.execute(statement)
    return ["app.root", "app.plain"]


def _look(conn: Connection, names: list[str]) -> dict[int, Standing]:
    oids = [conn.execute("SELECT %s::regclass::oid", (name,)).fetchone() for name in names]
    return {each.oid: each for each in read_standings(conn, [oid[0] for oid in oids if oid])}


def _changed(app: Connection, capture: Connection, tables: list[str], statements: str) -> list[str]:
    before = _look(capture, tables)
    for statement in statements.split("; "):
        app.execute(statement.encode())
    now = {each.oid: each for each in read_standings(capture, list(before))}
    reasons = (unstreamed(capture, before[oid], now[oid]) for oid in before)
    return [reason for reason in reasons if reason]


@pytest.mark.parametrize("what", UNSTREAMED)
def test_f056_what_is_not_streamed_is_found(
    app: Connection, capture: Connection, tables: list[str], what: str
) -> None:
    statements, reason = UNSTREAMED[what]
    (found,) = _changed(app, capture, tables, statements)
    assert reason in found


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_streamed_or_changes_no_row_asks_for_nothing(
    app: Connection, capture: Connection, tables: list[str], what: str
) -> None:
    assert _changed(app, capture, tables, HARMLESS[what]) == []


def test_a_partition_that_may_not_be_read_may_have_held_rows(
    app: Connection, admin: Connection, capture: Connection, tables: list[str]
) -> None:
    admin.execute("CREATE ROLE theirs")
    create = "CREATE TABLE app.closed PARTITION OF app.root FOR VALUES FROM (300) TO (400)"
    before = _look(capture, ["app.root"])
    admin.execute(create)
    admin.execute("ALTER TABLE app.closed OWNER TO theirs")
    (now,) = read_standings(capture, list(before))
    assert "app.closed was added" in unstreamed(capture, before[now.oid], now)


def test_a_look_survives_being_kept(capture: Connection, tables: list[str]) -> None:
    looks = _look(capture, tables)
    assert len(looks) == 2
    for look in looks.values():
        assert Standing.from_dict(look.to_dict()) == look


def test_a_table_that_is_gone_is_left_out(
    app: Connection, capture: Connection, tables: list[str]
) -> None:
    oids = list(_look(capture, tables))
    app.execute("DROP TABLE plain")
    assert [each.name for each in read_standings(capture, oids)] == ["app.root"]
    assert read_standings(capture, []) == []


def _standing(**columns: int) -> Standing:
    """Names and numbers, all of one type."""
    made = (StandingColumn(number, name, 23, -1, False, 1) for name, number in columns.items())
    return Standing(1, "app.t", False, tuple(made), ())


def _shape(*names: str, type_oid: int = 23, name: str = "t") -> Relation:
    columns = tuple(Column(column, type_oid, -1, column == "id") for column in names)
    return Relation(1, "app", name, ReplicaIdentity.DEFAULT, columns, ("id",))


@pytest.mark.parametrize(
    ("before", "shape", "now"),
    [
        (_standing(id=1), _shape("id"), _standing(id=1)),
        (_standing(id=1), _shape("id", "a"), _standing(id=1, a=2, b=3)),
        (_standing(id=1, a=2), _shape("id", "a"), _standing(id=1)),
        (_standing(id=1, a=2), _shape("id"), _standing(id=1)),
        (_standing(id=1, a=2, b=3), _shape("id", "b", "c"), _standing(id=1, b=3, c=4, d=5)),
    ],
)
def test_a_shape_on_the_way_from_one_look_to_the_next_says_nothing_new(
    before: Standing, shape: Relation, now: Standing
) -> None:
    assert passed_through(before, now, shape) == ""


@pytest.mark.parametrize(
    ("before", "shape", "now", "reason"),
    [
        # Under another name, and back.
        (_standing(id=1), _shape("id", name="u"), _standing(id=1), "it was app.u for a while"),
        # Added, then renamed.
        (_standing(id=1), _shape("id", "a"), _standing(id=1, b=2), "column a came and went"),
        # The same, and then another one was added under the name.
        (_standing(id=1), _shape("id", "a"), _standing(id=1, b=2, a=3), "a came and went"),
        # Renamed, and back.
        (_standing(id=1, a=2), _shape("id", "b"), _standing(id=1, a=2), "column a was another"),
        # Two that have changed their names for a while.
        (
            _standing(id=1, a=2, b=3),
            _shape("id", "b", "a"),
            _standing(id=1, a=2, b=3),
            "column a was another",
        ),
        # In another type, and back.
        (
            _standing(id=1, a=2),
            _shape("id", "a", type_oid=25),
            _standing(id=1, a=2),
            "column id was another",
        ),
    ],
)
def test_f058_a_shape_that_no_look_has_shown_asks_for_a_new_base(
    before: Standing, shape: Relation, now: Standing, reason: str
) -> None:
    assert reason in passed_through(before, now, shape)
