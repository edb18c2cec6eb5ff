"""Tables that are altered, moved, truncated, detached or dropped, streams that leave, leaders that
meet and buffers that are full: in each mode, and while tables are handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.capture import Settings
from tailrace.capture.hybrid.upkeep import TriggerUpkeep
from tailrace.control.tracking import Tracked, read_tracked
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection
from tailrace.storage import FileStore
from tests.capture.hybrid.test_handover import modes, trigger_states
from tests.capture.oracle import assert_equal, read_changes
from tests.capture.running import NAMES, Running, hybrid, published, settings, wait_caught_up
from tests.capture.tracked import buffer_of, oid_of
from tests.disk import small_disk
from tests.server import Database

pytestmark = pytest.mark.usefixtures("quickly")

_TABLES = """
CREATE SCHEMA shop;
CREATE TABLE moved (id int PRIMARY KEY);
CREATE TABLE gone (id int PRIMARY KEY);
CREATE TABLE rekeyed (a int PRIMARY KEY, b int NOT NULL);
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE shop.low PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE shop.high PARTITION OF parted FOR VALUES FROM (100) TO (200);
"""
_NAMES = ("t", "moved", "gone", "rekeyed", "parted")

_DEEDS = """
INSERT INTO t VALUES (1, 'a'); INSERT INTO moved VALUES (1); INSERT INTO gone VALUES (1);
INSERT INTO rekeyed VALUES (1, 10), (2, 20); INSERT INTO parted VALUES (50), (150);
ALTER TABLE t ADD w int; INSERT INTO t VALUES (2, 'b', 2); TRUNCATE t;
ALTER TABLE t DROP v; INSERT INTO t VALUES (3, 3);
ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (b);
INSERT INTO rekeyed VALUES (1, 30); UPDATE rekeyed SET b = 31 WHERE b = 30;
BEGIN; ALTER TABLE moved RENAME TO t_moved; ALTER TABLE t_moved SET SCHEMA shop; COMMIT;
INSERT INTO shop.t_moved VALUES (2);
ALTER TABLE parted DETACH PARTITION shop.low; INSERT INTO shop.low VALUES (51);
CREATE TABLE shop.next (LIKE parted INCLUDING ALL);
ALTER TABLE parted ATTACH PARTITION shop.next FOR VALUES FROM (200) TO (300);
INSERT INTO parted VALUES (250);
DROP TABLE gone;
"""


def told(database: Database, mode: str) -> Settings:
    """Such that every table comes to be in this mode, and stays there."""
    tables = [f"public.{name}" for name in _NAMES] + ["shop.t_moved"]
    own = dict.fromkeys(tables, "trigger") if mode == "TRIGGER" else {}
    # The stream is never near enough for a hand-over to end.
    lag = -1 if mode == "TRANSITIONING" else 16 << 20
    rules = hybrid("auto", tables=own, handover_lag_bytes_max=lag)
    return settings(database.dsn, *tables, hybrid=rules)


def lead_to(
    database: Database, source: psycopg.Connection, store: FileStore, names: Sequence[str]
) -> None:
    """Let triggers capture the tables."""
    with Running(told(database, "TRIGGER"), store) as capture:
        capture.wait_until(lambda: modes(source) == dict.fromkeys(names, "TRIGGER"))


@pytest.mark.parametrize("mode", ["TRIGGER", "TRANSITIONING", "WAL"])
def test_f080_whatever_is_done_to_tables_in_each_mode_is_followed(
    database: Database, source: psycopg.Connection, store: FileStore, mode: str
) -> None:
    source.execute(_TABLES)
    lead_to(database, source, store, _NAMES)
    left = ("t", "t_moved", "rekeyed", "parted")
    with Running(told(database, mode), store) as capture:
        capture.wait_until(lambda: modes(source) == dict.fromkeys(_NAMES, mode))
        for deed in filter(str.strip, _DEEDS.split(";")):
            source.execute(deed.encode())
        capture.wait_until(lambda: set(modes(source)) == set(left))
        wait_caught_up(capture, source)
    with Running(told(database, "WAL"), store) as capture:
        capture.wait_until(lambda: modes(source) == dict.fromkeys(left, "WAL"))
        source.execute("INSERT INTO shop.t_moved VALUES (3)")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    changes = list(read_changes(store))
    rekeyed = [change for change in changes if change.relation.name == "rekeyed"]
    assert [(change.relation.key, change.old, change.new) for change in rekeyed] == [
        (("a",), None, {"a": "1", "b": "10"}),
        (("a",), None, {"a": "2", "b": "20"}),
        (("b",), None, {"a": "1", "b": "30"}),
        (("b",), {"a": None, "b": "30"}, {"a": "1", "b": "31"}),
    ]
    # Rows that the log has under the old key cannot be told from those under the new one.
    assert rekeyed[0].relation.oid in wanted_bases(store, newest_positions(store))
    named = [change.relation.qualified for change in changes if "moved" in change.relation.name]
    assert named == ["public.moved", "shop.t_moved", "shop.t_moved"]
    (oid,) = source.execute("SELECT 'parted'::regclass::oid::bigint").fetchone() or (0,)
    ids = [(change.new or {}).get("id") for change in changes if change.relation.oid == oid]
    # What a partition takes along or brings is not streamed: the table is to be read anew.
    assert ids == ["50", "150", "250"]
    assert oid in wanted_bases(store, newest_positions(store))


@pytest.mark.parametrize("mode", ["TRIGGER", "TRANSITIONING", "WAL"])
def test_f080_a_table_that_is_captured_may_become_a_partition_of_another(
    database: Database, source: psycopg.Connection, store: FileStore, mode: str
) -> None:
    source.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE moved (id int PRIMARY KEY)")
    attach = "ALTER TABLE parted ATTACH PARTITION moved FOR VALUES FROM (0) TO (100)"
    names = ["t", "moved", "parted"]
    lead_to(database, source, store, names)
    with Running(told(database, mode), store) as capture:
        capture.wait_until(lambda: modes(source) == dict.fromkeys(names, mode))
        source.execute("INSERT INTO moved VALUES (1)")
        source.execute(attach)
        # From now on it is captured with its root alone, and by itself again once it has left it.
        capture.wait_until(lambda: modes(source) == dict.fromkeys(["t", "parted"], mode))
        source.execute("INSERT INTO moved VALUES (2)")
        source.execute("INSERT INTO parted VALUES (3)")
        source.execute("ALTER TABLE parted DETACH PARTITION moved")
        capture.wait_until(lambda: set(modes(source)) == set(names))
        source.execute("INSERT INTO moved VALUES (4)")
        source.execute(attach)
        wait_caught_up(capture, source)
    told_of = [(change.relation.name, (change.new or {})["id"]) for change in read_changes(store)]
    assert told_of == [("moved", "1"), ("parted", "2"), ("parted", "3"), ("moved", "4")]
    assert len(wanted_bases(store, newest_positions(store))) == 2


@pytest.mark.parametrize("mode", ["TRIGGER", "TRANSITIONING"])
def test_f080_a_partition_that_leaves_its_table_when_it_was_just_let_go_is_captured_once(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    let_go = TriggerUpkeep.let_go
    source.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE moved (id int PRIMARY KEY)")
    names = ["t", "moved", "parted"]
    lead_to(database, source, store, names)
    oid = oid_of(source, "public.moved")

    def detach(
        upkeep: TriggerUpkeep, conn: Connection, tracked: Tracked, table: TableInfo | None
    ) -> None:
        let_go(upkeep, conn, tracked, table)
        if tracked.oid == oid and oid not in read_tracked(conn, NAMES.slot):
            with database.connect() as other:
                other.execute("ALTER TABLE parted DETACH PARTITION moved")

    monkeypatch.setattr(TriggerUpkeep, "let_go", detach)
    with Running(told(database, mode), store) as capture:
        capture.wait_until(lambda: modes(source) == dict.fromkeys(names, mode))
        source.execute("ALTER TABLE parted ATTACH PARTITION moved FOR VALUES FROM (0) TO (100)")
        detached = "SELECT NOT relispartition FROM pg_class WHERE oid = %s"
        capture.wait_until(lambda: source.execute(detached, [oid]).fetchone() == (True,))
        capture.wait_until(lambda: set(modes(source)) == set(names))
        by_trigger = modes(source)["moved"] != "WAL"
        assert len(trigger_states(source, "moved")) == (2 if by_trigger else 0)
        source.execute("INSERT INTO moved VALUES (4)")
        wait_caught_up(capture, source)
    found = [(change.relation.name, (change.new or {})["id"]) for change in read_changes(store)]
    assert found == [("moved", "4")]


def test_f080_streams_share_a_capture_and_leave_it_while_it_is_handed_over(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    def read_by(**streams: Sequence[str]) -> Settings:
        stuck = told(database, "TRANSITIONING")
        selection = Selection(["public.t"], (), streams)
        return replace(stuck, duties=replace(stuck.duties, selection=selection))

    def readers() -> list[str] | None:
        query = "SELECT tracked_by FROM tailrace.change_tracking WHERE table_name = 't'"
        row = source.execute(query).fetchone()
        return None if row is None else list(row[0])

    lead_to(database, source, store, ["t"])
    kept = buffer_of(source, "public.t")
    with Running(read_by(lake=["public.*"], search=["public.t"], other=["shop.*"]), store) as first:
        first.wait_until(lambda: modes(source) == {"t": "TRANSITIONING"})
        first.wait_until(lambda: readers() == ["lake", "search"])
    with Running(read_by(search=["public.t"]), store) as second:
        second.wait_until(lambda: readers() == ["search"])
        assert modes(source) == {"t": "TRANSITIONING"}
        source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_caught_up(second, source)
    with Running(read_by(), store) as unread:
        unread.wait_until(lambda: readers() == [])
        add = "INSERT INTO tailrace.streams (name, tables, sink) VALUES (%s, %s, %s)"
        source.execute(add, ["made", ["public.*"], '{"type": "memory"}'])
        unread.wait_until(lambda: readers() == ["made"])
        source.execute("DELETE FROM tailrace.streams")
        unread.wait_until(lambda: readers() == [])
        # It is `capture.tables` that says what is captured, also for streams that come later.
        assert modes(source) == {"t": "TRANSITIONING"} and trigger_states(source, "t") == ["A", "A"]
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with Running(settings(database.dsn, "public.other", hybrid=hybrid("auto")), store) as third:
        third.wait_until(lambda: modes(source) == {"other": "WAL"})
        assert trigger_states(source, "t") == []
        assert {name for _, name in published(source)} == {"other"}
        assert source.execute("SELECT to_regclass(%s)", [kept]).fetchone() == (None,)
        shapes = "SELECT count(*) FROM tailrace.table_shapes WHERE table_oid = 't'::regclass"
        assert source.execute(shapes).fetchone() == (1,), "the one from which numbers go on"
    assert [change.op for change in read_changes(store)] == ["I"]


def test_f082_of_two_that_start_at_once_one_drains_and_the_other_goes_on_after_it(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    slotless = settings(database.dsn, hybrid=hybrid("trigger"))
    with Running(slotless, store) as one, Running(slotless, store) as other:
        one.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        source.execute("INSERT INTO t VALUES (1, 'a')")
        one.wait_until(lambda: len(list(read_changes(store))) == 1)
        assert one.value("leader") + other.value("leader") == 1
        leader, standby = (one, other) if one.value("leader") else (other, one)
        leader.stop()
        source.execute("UPDATE t SET v = 'b'")
        standby.wait_until(lambda: len(list(read_changes(store))) == 2)
        assert standby.value("leader") == 1
    assert_equal(store, source, "public.t")


def test_f088_a_full_disk_in_the_buffer_fails_its_writer_alone_and_loses_nothing(
    database: Database, source: psycopg.Connection, store: FileStore, server_dir: Path
) -> None:
    owner = database.server.data_dir.stat().st_uid
    with (
        Running(settings(database.dsn, hybrid=hybrid("trigger")), store) as capture,
        small_disk(server_dir / "small", owner=owner) as place,
    ):
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        query = sql.SQL("CREATE TABLESPACE small LOCATION {}").format(str(place))
        source.execute(query)
        move = sql.SQL("ALTER TABLE {} SET TABLESPACE {}")
        kept = sql.SQL(buffer_of(source, "public.t"))
        source.execute(move.format(kept, sql.Identifier("small")))
        with pytest.raises(psycopg.errors.DiskFull):
            source.execute(
                "INSERT INTO t SELECT n, repeat('x', 999) FROM generate_series(1, 2000) AS n"
            )
        assert source.execute("SELECT count(*) FROM t").fetchone() == (0,)
        source.execute(move.format(kept, sql.Identifier("pg_default")))
        source.execute("DROP TABLESPACE small")
        source.execute("INSERT INTO t VALUES (1, 'a')")
        capture.wait_until(lambda: len(list(read_changes(store))) == 1)
    assert_equal(store, source, "public.t")
