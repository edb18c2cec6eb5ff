"""Tables change while they are captured: one that turns bad is set aside and comes back, one that
Postgres does not stream whole is asked for again, and all others flow.
"""

from __future__ import annotations

import logging

import psycopg
import pytest
from psycopg import sql

from tailrace.capture.looks import every_look
from tailrace.log import Reader, layout
from tailrace.log.bases import newest_bases, newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.check_publication import publication_findings
from tailrace.postgres.server import read_server
from tailrace.postgres.session import connect
from tailrace.status import SourceReport, gather
from tailrace.storage import FileStore
from tests.bases.oracle import assert_equal as assert_whole
from tests.bases.taking import oid_of, take
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import (
    Running,
    is_published,
    published,
    settings,
    wait_caught_up,
)
from tests.server import Database, both_versions

pytestmark = both_versions


@pytest.fixture
def capture(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Running:
    """Capture that looks after its tables all the time."""
    monkeypatch.setattr("tailrace.capture.housekeeping.TABLES_INTERVAL_S", 0.1)
    caplog.set_level(logging.WARNING)
    source.execute("CREATE TABLE root (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE leaf_a PARTITION OF root FOR VALUES FROM (0) TO (100)")
    # Another order of columns, and one that was dropped.
    source.execute("CREATE TABLE leaf_b (old int, v text, id int PRIMARY KEY)")
    source.execute("ALTER TABLE leaf_b DROP old")
    source.execute("ALTER TABLE root ATTACH PARTITION leaf_b FOR VALUES FROM (100) TO (200)")
    return Running(settings(database.dsn, "public.t*", "public.root"), store)


def reasons(store: FileStore) -> list[str]:
    """Why bases are asked for."""
    return [each.reason for each in wanted_bases(store, newest_positions(store)).values()]


def report(capture: Running, store: FileStore) -> SourceReport:
    """What `tailrace status` says of the source."""
    duties, reader = capture.told.duties, Reader(store)
    return gather(duties.dsn, duties.names, reader, {}, now_s=0, selection=duties.selection).source


def test_f056_partitions_are_captured_as_their_root_whatever_the_order_of_their_columns(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root SELECT g * 10, 'v' || g FROM generate_series(0, 19) g")
        source.execute("UPDATE root SET id = id + 101 WHERE id < 50")
        source.execute("CREATE TABLE leaf_c PARTITION OF root FOR VALUES FROM (200) TO (300)")
        source.execute("UPDATE root SET id = id + 100 WHERE id BETWEEN 110 AND 130")
        source.execute("DELETE FROM root WHERE id % 20 = 0")
        wait_caught_up(capture, source)
        assert_equal(store, source, "public.root")
        assert {change.relation.qualified for change in read_changes(store)} == {"public.root"}
        source.execute("TRUNCATE root")
        source.execute("INSERT INTO root VALUES (1, 'after')")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.root")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("TRUNCATE leaf_a", "leaf_a was truncated"),
        ("ALTER TABLE root DETACH PARTITION leaf_a", "leaf_a was detached"),
        ("ALTER TABLE root ATTACH PARTITION apart FOR VALUES FROM (200) TO (300)", "apart was"),
        ("ALTER TABLE root ADD w int DEFAULT 1", "column w was added"),
    ],
)
def test_f056_what_postgres_does_not_stream_asks_for_a_new_base(
    capture: Running, source: psycopg.Connection, store: FileStore, statement: str, reason: str
) -> None:
    source.execute("CREATE TABLE apart AS SELECT 200 AS id, 'came along' AS v")
    source.execute("ALTER TABLE apart ALTER id SET NOT NULL, ADD PRIMARY KEY (id)")
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a'), (101, 'b')")
        wait_caught_up(capture, source)
        assert reasons(store) == []
        source.execute(statement.encode())
        capture.wait_until(lambda: reasons(store))
        (found,) = reasons(store)
    assert reason in found


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (
            "ALTER TABLE root ADD n text",
            "ALTER TABLE root RENAME n TO m",
            "column n came and went",
        ),
        (
            "ALTER TABLE root RENAME v TO w",
            "ALTER TABLE root RENAME w TO v",
            "column v was another one for a while",
        ),
    ],
)
def test_f058_what_a_column_was_between_two_looks_is_known_from_its_rows(
    *,
    capture: Running,
    source: psycopg.Connection,
    store: FileStore,
    first: str,
    then: str,
    reason: str,
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a')")
        wait_caught_up(capture, source)
        with source.transaction():
            source.execute(first.encode())
            source.execute("INSERT INTO root SELECT 2")
            source.execute(then.encode())
        capture.wait_until(lambda: reasons(store))
    assert reasons(store) == [reason]


def test_f056_a_partition_that_is_detached_for_the_length_of_a_transaction_is_found(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a'), (101, 'b')")
        wait_caught_up(capture, source)
        with source.transaction():
            source.execute("ALTER TABLE root DETACH PARTITION leaf_a")
            source.execute("UPDATE leaf_a SET v = 'apart'")
            source.execute("ALTER TABLE root ATTACH PARTITION leaf_a FOR VALUES FROM (0) TO (100)")
        capture.wait_until(lambda: reasons(store))
    assert reasons(store) == ["partition public.leaf_a was detached for a while"]


CAME_AND_WENT = (
    (
        "CREATE TABLE leaf_c PARTITION OF root FOR VALUES FROM (200) TO (300)",
        "INSERT INTO root VALUES (200, 'c')",
        "DROP TABLE leaf_c",
    ),
    (
        "CREATE TABLE leaf_c (v text, id int PRIMARY KEY)",
        "INSERT INTO leaf_c VALUES ('c', 200)",
        "ALTER TABLE root ATTACH PARTITION leaf_c FOR VALUES FROM (200) TO (300)",
        "UPDATE root SET v = 'd' WHERE id = 200",
        "ALTER TABLE root DETACH PARTITION leaf_c",
    ),
)


@pytest.mark.parametrize("statements", CAME_AND_WENT, ids=["dropped", "detached"])
def test_f056_a_partition_that_no_look_has_shown_is_known_from_its_rows(
    capture: Running, source: psycopg.Connection, store: FileStore, statements: tuple[str, ...]
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a')")
        wait_caught_up(capture, source)
    for statement in statements:
        source.execute(statement.encode())
    with Running(capture.told, store) as again:
        again.wait_until(lambda: reasons(store))
        assert reasons(store) == ["partition public.leaf_c came and went"]
        again.wait_until(lambda: not store.list(layout.STRAYS))


def test_a_partition_that_a_look_has_shown_is_judged_once(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    """Its rows may come after it is gone: capture may be behind."""
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a')")
        wait_caught_up(capture, source)
    source.execute("DROP TABLE leaf_b")
    with Running(capture.told, store) as again:
        again.wait_until(lambda: reasons(store))
    (look,) = (each for each in every_look(store) if each.is_partitioned)
    assert len(look.leaves) == 1
    assert len(look.leaf_oids) == 2


def test_f060_rows_that_came_under_another_name_between_two_looks_are_not_forgotten(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE t_plain (id int PRIMARY KEY)")
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO t_plain VALUES (1)")
        wait_caught_up(capture, source)
        with source.transaction():
            source.execute("ALTER TABLE t_plain RENAME TO other")
            source.execute("INSERT INTO other VALUES (2)")
            source.execute("ALTER TABLE other RENAME TO t_plain")
        capture.wait_until(lambda: reasons(store))
    assert reasons(store) == ["it was public.other for a while"]


def test_f056_what_happens_while_nobody_captures_is_found_as_well(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a')")
        wait_caught_up(capture, source)
    source.execute("TRUNCATE leaf_a")
    with Running(capture.told, store) as again:
        again.wait_until(lambda: reasons(store))


def test_f052_a_table_that_loses_its_key_is_set_aside_before_long_and_comes_back_by_itself(
    capture: Running,
    source: psycopg.Connection,
    store: FileStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.execute("CREATE TABLE table_two (id int PRIMARY KEY, v text)")
    with capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO table_two VALUES (1, 'a')")
        source.execute("ALTER TABLE table_two DROP CONSTRAINT table_two_pkey")
        capture.wait_until(lambda: not is_published(source, "table_two"))
        # The application works, and so do the others.
        source.execute("UPDATE table_two SET v = 'unseen'")
        source.execute("INSERT INTO t VALUES (1, 'flows')")
        wait_caught_up(capture, source)
        capture.wait_until(
            lambda: "table=public.table_two reason=has no primary key" in caplog.text
        )
        assert reasons(store) == []
        source.execute("ALTER TABLE table_two ADD PRIMARY KEY (id)")
        capture.wait_until(lambda: is_published(source, "table_two"))
        capture.wait_until(lambda: reasons(store))
        assert reasons(store) == ["it was not published for a while"]
        (stale,) = report(capture, store).stale
        assert (stale.table, stale.reason) == ("public.table_two", *reasons(store))
    assert_equal(store, source, "public.t")


def test_a_table_that_comes_back_before_its_first_base_is_complete_needs_a_later_one(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE table_two AS SELECT 1 AS id")
    source.execute("ALTER TABLE table_two ADD PRIMARY KEY (id)")
    with capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: is_published(source, "table_two"))
        source.execute("ALTER TABLE table_two DROP CONSTRAINT table_two_pkey")
        capture.wait_until(lambda: not is_published(source, "table_two"))
        source.execute("ALTER TABLE table_two ADD PRIMARY KEY (id)")
        capture.wait_until(lambda: is_published(source, "table_two"))
        capture.wait_until(lambda: reasons(store) == ["it was not published for a while"])


def test_a_table_that_comes_back_empty_needs_nothing_but_that_knowledge(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    with capture:
        capture.wait_for_stream()
        (before,) = [base for base in newest_bases(store).values() if base.relation.name == "t"]
        source.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
        capture.wait_until(lambda: not is_published(source, "t"))
        source.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
        capture.wait_until(lambda: newest_positions(store)[before.relation.oid] > before.position)
        assert reasons(store) == []


CHANGED = {
    "SET TABLE t WHERE (id > 5), root": ["public.t"],
    "DROP TABLE root": ["public.root"],
    "ADD TABLES IN SCHEMA apart": [],
    "SET (publish = 'insert')": ["public.root", "public.t"],
    "SET TABLE root, t (id)": ["public.t"],
}
"""What someone does to our publication, and the tables that begin again for it."""

MEMBERS = """
    SELECT member.prrelid::regclass::text
    FROM pg_publication_rel AS member
    JOIN pg_publication ON pg_publication.oid = member.prpubid
    WHERE pg_publication.pubname = %s
"""


def test_f061_what_someone_changes_in_our_publication_is_set_right_before_long(
    capture: Running, database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE SCHEMA apart CREATE TABLE apart.keyless (a int)")
    # That of someone else is no matter.
    source.execute("CREATE PUBLICATION theirs FOR TABLE t (id) WHERE (id > 5)")
    source.execute("INSERT INTO t VALUES (0, 'a')")
    source.execute("INSERT INTO root VALUES (1, 'a')")
    with capture:
        capture.wait_for_stream()
        take(database.dsn, store)
        for number, (change, tables) in enumerate(CHANGED.items()):
            before = newest_positions(store)
            source.execute(sql.SQL("ALTER PUBLICATION tailrace_main {}").format(sql.SQL(change)))
            source.execute("UPDATE t SET id = id + 1, v = %s", [str(number)])
            source.execute("UPDATE root SET v = %s", [str(number)])
            _wait_set_right(capture, store, tables)
            source.execute("UPDATE apart.keyless SET a = 1")
            take(database.dsn, store)
            now = newest_positions(store)
            anew = {oid for oid, position in now.items() if position > before[oid]}
            assert anew == {oid_of(source, table) for table in tables}
            source.execute("UPDATE t SET v = v || ' later'")
            wait_caught_up(capture, source)
            assert_whole(store, source, "public.t", "public.root")
    # So is what happens while nobody captures.
    source.execute("ALTER PUBLICATION tailrace_main SET TABLE root WHERE (id > 5)")
    source.execute("UPDATE root SET v = 'unseen'")
    with Running(capture.told, store) as again:
        _wait_set_right(again, store, ["public.root", "public.t"])
        take(database.dsn, store)
        assert_whole(store, source, "public.t", "public.root")


def _wait_set_right(capture: Running, store: FileStore, tables: list[str]) -> None:
    """Until nothing is wrong with the publication, all tables are in it again, and just these need
    a base.
    """
    duties = capture.told.duties

    def is_right() -> bool:
        name, stale = duties.names.publication, report(capture, store).stale
        with connect(duties.dsn) as conn:
            findings = publication_findings(conn, name, read_server(conn), is_in_use=True)
            members = {table for (table,) in conn.execute(MEMBERS, [name])}
        is_whole = members == {"public.root", "public.t"}
        return not findings and is_whole and sorted(each.table for each in stale) == tables

    capture.wait_until(is_right)


def test_f060_tables_that_are_dropped_renamed_or_moved_are_followed(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE SCHEMA elsewhere")
    for name in ("t_dropped", "t_renamed", "t_away", "t_moved"):
        create = sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)")
        source.execute(create.format(sql.Identifier(name)))
    with capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: is_published(source, "t_renamed"))
        source.execute("INSERT INTO t_dropped VALUES (1)")
        source.execute("DROP TABLE t_dropped")
        source.execute("CREATE TABLE t_dropped (id int PRIMARY KEY, another int)")
        source.execute("ALTER TABLE t_renamed RENAME TO t_new_name")
        source.execute("ALTER TABLE t_away RENAME TO away")
        source.execute("ALTER TABLE t_moved SET SCHEMA elsewhere")
        capture.wait_until(lambda: reasons(store) == ["it was public.t_renamed before"])
        capture.wait_until(lambda: not is_published(source, "away"))
        capture.wait_until(lambda: not is_published(source, "t_moved"))
        capture.wait_until(lambda: is_published(source, "t_dropped"))
        source.execute("INSERT INTO t_dropped VALUES (2, 2)")
        source.execute("INSERT INTO t_new_name VALUES (3)")
        source.execute("INSERT INTO away VALUES (4)")
        wait_caught_up(capture, source)
    found = [(each.relation.qualified, each.new) for each in read_changes(store)]
    assert found[-2:] == [
        ("public.t_dropped", {"id": "2", "another": "2"}),
        ("public.t_new_name", {"id": "3"}),
    ]


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("ALTER TABLE root RENAME TO t_root", "public.t_root"),
        ("ALTER TABLE root SET SCHEMA elsewhere", "elsewhere.root"),
    ],
)
def test_f060_partitions_of_a_table_that_is_renamed_or_moved_follow_it(
    *,
    capture: Running,
    source: psycopg.Connection,
    store: FileStore,
    statement: str,
    name: str,
) -> None:
    source.execute("CREATE SCHEMA elsewhere")
    told = settings(capture.told.duties.dsn, "public.t*", "public.root", "elsewhere.*")
    with Running(told, store) as following:
        following.wait_for_stream()
        source.execute("INSERT INTO root VALUES (1, 'a')")
        wait_caught_up(following, source)
        source.execute(statement.encode())
        following.wait_until(lambda: reasons(store) == ["it was public.root before"])
        insert = sql.SQL("INSERT INTO {} VALUES (2, 'b')")
        source.execute(insert.format(sql.Identifier(*name.split("."))))
        wait_caught_up(following, source)
    *_, last = read_changes(store)
    assert (last.relation.qualified, last.new) == (name, {"id": "2", "v": "b"})


def test_a_published_table_that_becomes_a_partition_goes_on_as_part_of_its_root(
    capture: Running, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE t_apart (id int PRIMARY KEY, v text)")
    with capture:
        capture.wait_for_stream()
        capture.wait_until(lambda: is_published(source, "t_apart"))
        source.execute("INSERT INTO t_apart VALUES (250, 'a')")
        source.execute("ALTER TABLE root ATTACH PARTITION t_apart FOR VALUES FROM (200) TO (300)")
        capture.wait_until(lambda: reasons(store))
        capture.wait_until(lambda: not is_published(source, "t_apart"))
        source.execute("INSERT INTO root VALUES (251, 'b')")
        wait_caught_up(capture, source)
    *_, last = read_changes(store)
    assert (last.relation.qualified, last.new) == ("public.root", {"id": "251", "v": "b"})


def test_f052_of_a_keyless_table_inserts_alone_are_taken_where_that_is_asked_for(
    capture: Running, database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE t_events (at int, v text)")
    told = settings(database.dsn, "public.t*", "public.root", inserts_only=["public.t_ev*"])
    with Running(told, store) as taking:
        taking.wait_for_stream()
        source.execute("INSERT INTO t_events VALUES (1, 'a'), (1, 'a')")
        # Nothing of the application's breaks; but this is not captured.
        source.execute("UPDATE t_events SET v = 'b'")
        source.execute("DELETE FROM t_events")
        source.execute("TRUNCATE t_events")
        source.execute("INSERT INTO t_events VALUES (2, 'c')")
        wait_caught_up(taking, source)
        found = [each for each in read_changes(store) if each.relation.name == "t_events"]
        assert [(each.op, each.new and each.new["at"]) for each in found] == [
            ("I", "1"),
            ("I", "1"),
            ("T", None),
            ("I", "2"),
        ]
        assert found[0].relation.key == ()
        # With a key it is captured whole, from a new base on, whatever is noticed first.
        source.execute("ALTER TABLE t_events ADD PRIMARY KEY (at)")
        either = (["it was not published for a while"], ["its key was none and is now at"])
        taking.wait_until(lambda: reasons(store) in either)
        taking.wait_until(lambda: _publications(source, "t_events") == ["tailrace_main"])
        source.execute("UPDATE t_events SET v = 'd'")
        wait_caught_up(taking, source)
        *_, last = read_changes(store)
        assert (last.op, last.new) == ("U", {"at": "2", "v": "d"})
        # And without it again as before.
        source.execute("ALTER TABLE t_events DROP CONSTRAINT t_events_pkey")
        taking.wait_until(lambda: _publications(source, "t_events") == ["tailrace_main_inserts"])


def _publications(source: psycopg.Connection, table: str) -> list[str]:
    return [publication for publication, name in published(source) if name == table]
