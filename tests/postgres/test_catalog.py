"""What the catalog is asked: tables, keys, types and partitions."""

from __future__ import annotations

from psycopg import sql

from tailrace.model import PgType, ReplicaIdentity
from tailrace.postgres.catalog import (
    Kind,
    Persistence,
    RelationCatalog,
    TableInfo,
    describe_relations,
    read_leaves,
    tables_matching,
)
from tailrace.postgres.session import Connection
from tests.postgres.names import HOSTILE


def _only(conn: Connection, pattern: str) -> TableInfo:
    (table,) = tables_matching(conn, [pattern])
    return table


def test_patterns_find_tables_and_roots_but_no_leaves_or_views(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE a_c (id int PRIMARY KEY)")
    app.execute("CREATE TABLE abc (id int PRIMARY KEY)")
    app.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    app.execute("CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)")
    app.execute("CREATE VIEW seen AS SELECT 1 AS one")
    found = tables_matching(capture, ["app.*"])
    assert [(table.name, table.kind) for table in found] == [
        ("a_c", Kind.TABLE),
        ("abc", Kind.TABLE),
        ("root", Kind.PARTITIONED),
    ]
    assert [table.name for table in tables_matching(capture, ["app.a_c", "app.a_c"])] == ["a_c"]
    assert [leaf.name for leaf in read_leaves(capture, found[2])] == ["leaf"]


def test_schemas_of_the_system_and_of_ours_never_match(admin: Connection) -> None:
    for schema in ("tailrace", "tailrace_changes", "shop"):
        admin.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        admin.execute(sql.SQL("CREATE TABLE {} (a int)").format(sql.Identifier(schema, "t")))
    admin.execute("CREATE TEMPORARY TABLE passing (a int)")
    assert [table.qualified for table in tables_matching(admin, ["*.*"])] == ["shop.t"]


def test_a_table_is_described_as_it_is(app: Connection, capture: Connection) -> None:
    app.execute(
        """CREATE UNLOGGED TABLE t (b int, a int, gone int, twice int GENERATED ALWAYS AS (a * 2)
           STORED, c text, PRIMARY KEY (a, b) INCLUDE (c))"""
    )
    app.execute("ALTER TABLE t DROP COLUMN gone")
    table = _only(capture, "app.t")
    assert table.columns == ("b", "a", "twice", "c")
    assert table.generated == ("twice",)
    assert table.key == table.identity_columns == ("a", "b")
    assert (table.persistence, table.identity) == (Persistence.UNLOGGED, ReplicaIdentity.DEFAULT)
    assert (table.owner, table.is_owned, table.is_readable) == ("app", True, True)


def test_an_identity_is_usable_only_if_postgres_would_use_it(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE)")
    app.execute("CREATE TABLE full_row (a int)")
    app.execute("ALTER TABLE full_row REPLICA IDENTITY FULL")
    app.execute("CREATE TABLE indexed (a int NOT NULL, b int)")
    app.execute("CREATE UNIQUE INDEX chosen ON indexed (a)")
    app.execute("ALTER TABLE indexed REPLICA IDENTITY USING INDEX chosen")
    app.execute("CREATE TABLE silent (a int PRIMARY KEY)")
    app.execute("ALTER TABLE silent REPLICA IDENTITY NOTHING")
    found = {table.name: table for table in tables_matching(capture, ["app.*"])}
    usable = {name: table.has_usable_identity for name, table in found.items()}
    assert usable == {"deferred": False, "full_row": True, "indexed": True, "silent": False}
    assert found["indexed"].identity_columns == ("a",)
    app.execute("DROP INDEX chosen")
    assert not _only(capture, "app.indexed").has_usable_identity


def test_a_key_that_rows_may_share_inside_of_a_transaction_identifies_none(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY DEFERRABLE, b int NOT NULL)")
    app.execute("CREATE UNIQUE INDEX chosen ON t (a, b)")
    app.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX chosen")
    assert _only(capture, "app.t").row_key == ("a", "b")
    app.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert _only(capture, "app.t").row_key == ()


def test_relations_are_described_by_key_columns_and_type_names(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TYPE mood AS ENUM ('calm')")
    app.execute('CREATE DOMAIN "Odd Name" AS text')
    app.execute(
        """CREATE TABLE t (feels mood, many mood[], id int PRIMARY KEY, name "Odd Name",
           twice int GENERATED ALWAYS AS (id * 2) STORED)"""
    )
    app.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    app.execute("CREATE TABLE keyless (a int)")
    t, keyless = _only(capture, "app.t").oid, _only(capture, "app.keyless").oid
    described = describe_relations(capture, [t, keyless, 4_294_967_295])
    assert set(described) == {t, keyless}
    assert described[keyless] == RelationCatalog((), False, columns=("a",), type_names=())
    assert described[t].key == ("id",)
    assert described[t].columns == ("feels", "many", "id", "name")
    names = [known.name for known in described[t].type_names]
    assert sorted(names) == ['app."Odd Name"', "app.mood", "app.mood[]"]
    (odd,) = [known for known in described[t].type_names if known.name == 'app."Odd Name"']
    assert odd.base_oid == PgType.TEXT


def test_f069_hostile_names_come_back_unchanged(app: Connection, capture: Connection) -> None:
    for name in HOSTILE:
        query = sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY)")
        app.execute(query.format(sql.Identifier(name), sql.Identifier(name)))
    found = tables_matching(capture, ["app.*"])
    assert {table.name for table in found} == set(HOSTILE)
    assert all(table.key == table.columns == (table.name,) for table in found)
