"""A base is the table as of its position: every row once, whoever writes, alters or dies."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.bases.automatic import AutomaticBases
from tailrace.bases.progress import BaseProgress
from tailrace.bases.reading import Failure, Outcome, Reading
from tailrace.bases.runner import ThreadRunner
from tailrace.bases.stretch import Stretch
from tailrace.bases.take import BaseSettings, BaseTaker
from tailrace.compaction import Compactor
from tailrace.compaction import Outcome as Folded
from tailrace.errors import ConfigError, SourceError, TailraceError
from tailrace.log import BaseOrigin, layout
from tailrace.log.bases import newest_bases, newest_positions
from tailrace.postgres.session import connect
from tailrace.status.under_way import bases_under_way
from tailrace.storage import FileStore, Store
from tests.bases.oracle import assert_equal, base_rows
from tests.bases.process import weigh
from tests.bases.taking import PATIENT, Rewriting, Swapping, captured, oid_of, take
from tests.capture.oracle import read_changes
from tests.capture.running import NAMES, Running, settings, wait_caught_up, wait_until
from tests.compaction.process import here
from tests.nursery import start
from tests.server import Database, newest_version


def test_a_filled_table_gets_a_base_and_the_changes_after_it_apply(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t") as capture:
        (result,) = take(database.dsn, store)
        assert result.base is not None
        assert (result.base.row_count, result.base.origin) == (1000, BaseOrigin.SNAPSHOT)
        assert len(result.base.parts) > 1
        source.execute("UPDATE t SET v = 'new' WHERE id < 10; DELETE FROM t WHERE id > 990")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    assert take(database.dsn, store) == []


def test_values_are_those_that_the_stream_sends(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("""CREATE TABLE odd ("a ""b"" %s" int PRIMARY KEY, "Ü" text, gone int, n numeric,
                      g int GENERATED ALWAYS AS (1) STORED, b bytea, t timestamptz)""")
    source.execute("ALTER TABLE odd DROP COLUMN gone")
    source.execute(
        r"""INSERT INTO odd VALUES (1, E'\\ \n\t\r', 'NaN', DEFAULT, '\x00ff', '-infinity'),
                                   (2, NULL, 1e40, DEFAULT, '', NULL),
                                   (3, '\N', NULL, DEFAULT, NULL, NULL)"""
    )
    with captured(database, store, source, "odd") as capture:
        take(database.dsn, store, oid_of(source, "odd"))
        base = newest_bases(store)[oid_of(source, "odd")]
        before = {row['a "b" %s']: row for row in base_rows(store, base)}
        assert list(before) == ["1", "2", "3"] and "g" not in base.relation.column_names
        assert (before["1"]["Ü"], before["1"]["b"], before["3"]["Ü"]) == (
            "\\ \n\t\r",
            "\\x00ff",
            "\\N",
        )
        source.execute('UPDATE odd SET "Ü" = "Ü"')
        wait_caught_up(capture, source)
    streamed = {c.new['a "b" %s']: c.new for c in read_changes(store) if c.op == "U" and c.new}
    assert streamed == before
    (use,) = {c.relation for c in read_changes(store) if c.relation.name == "odd"}
    assert use == base.relation


def test_partitions_are_read_with_the_columns_of_their_root_and_children_are_not(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE root (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (100)")
    source.execute("CREATE TABLE high (v text, x int, id bigint NOT NULL)")
    source.execute("ALTER TABLE high DROP COLUMN x")
    source.execute("ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (100) TO (900)")
    source.execute("INSERT INTO root SELECT g, 'v' || g FROM generate_series(1, 800) AS g")
    source.execute("CREATE TABLE child () INHERITS (t)")
    source.execute("ALTER TABLE child ADD PRIMARY KEY (id)")
    source.execute("INSERT INTO child VALUES (5000, 'of the child')")
    with captured(database, store, source, "root", "t", "child") as capture:
        results = {each.table: each.base for each in take(database.dsn, store)}
        counts = {table: base and base.row_count for table, base in results.items()}
        assert counts == {"public.root": 800, "public.t": 1000, "public.child": 1}
        source.execute("UPDATE root SET id = id + 750, v = 'moved' WHERE id BETWEEN 90 AND 99")
        source.execute("DELETE FROM child")
        wait_caught_up(capture, source)
    source.execute("DROP TABLE child")
    assert_equal(store, source, "public.root", "public.t")


class Meddling(ThreadRunner):
    """Does something to the source before the first stretches are read, once."""

    def __init__(self, source: psycopg.Connection, *statements: str) -> None:
        super().__init__(2)
        self._source = source
        self._statements = list(statements)

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        while self._statements:
            self._source.execute(self._statements.pop(0).encode())
        return super().run(reading, store, stretches)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ALTER COLUMN v TYPE varchar(99) USING left(v, 99)",
        "ALTER TABLE t ALTER COLUMN id TYPE numeric",
        "VACUUM FULL t",
        "TRUNCATE t",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    ],
)
def test_a_table_that_is_rewritten_or_altered_meanwhile_starts_again(
    database: Database, source: psycopg.Connection, store: FileStore, statement: str
) -> None:
    with captured(database, store, source, "t") as capture:
        runner = Meddling(source, statement)
        (result,) = take(database.dsn, store, oid_of(source, "t"), runner=runner)
        assert result.base is not None, result.error
        source.execute("INSERT INTO t (id) VALUES (-1)")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    # What the first try left is gone.
    assert len({entry.key.split("/")[2] for entry in store.list("bases/")}) == 1


def test_a_table_that_has_another_name_only_while_it_is_read_starts_again(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t"):
        (result,) = take(database.dsn, store, oid_of(source, "t"), runner=Swapping(source))
    assert result.base is not None and result.base.row_count == 1000


def test_a_table_starts_again_five_times(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    runner = Rewriting(source)
    with captured(database, store, source, "t"):
        (result,) = take(database.dsn, store, oid_of(source, "t"), runner=runner)
    assert result.error is not None and runner.run_count == 6


def test_a_table_that_is_dropped_meanwhile_does_not_keep_the_others_from_their_bases(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    source.execute("INSERT INTO other VALUES (1)")
    with captured(database, store, source, "t", "other"):
        runner = Meddling(source, "DROP TABLE other")
        results = {r.table: r for r in take(database.dsn, store, runner=runner)}
    assert results.pop("public.t").base is not None
    (gone,) = results.values()
    assert gone.base is None and gone.error is not None


class Folding(ThreadRunner):
    """Once, folds an older base past the one that is being read."""

    def __init__(self, capture: Running, source: psycopg.Connection) -> None:
        super().__init__()
        self._capture = capture
        self._source = source
        self.folded: list[Folded] = []

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        outcomes = super().run(reading, store, stretches)
        if not self.folded:
            self._source.execute("INSERT INTO t (id) VALUES (-1)")
            wait_caught_up(self._capture, self._source)
            self.folded = Compactor(store, here).compact()
        return outcomes


def test_a_base_that_an_older_one_is_folded_past_is_taken_again(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t") as capture:
        take(database.dsn, store)
        runner = Folding(capture, source)
        (result,) = take(database.dsn, store, oid_of(source, "t"), runner=runner)
    assert result.base is not None and result.base.position > runner.folded[0].position
    assert newest_bases(store)[oid_of(source, "t")] == result.base


class Failing(ThreadRunner):
    """Loses the first outcome of the first round, once its parts are put."""

    has_failed = False

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        first, *rest = super().run(reading, store, stretches)
        if not self.has_failed:
            self.has_failed = True
            first = replace(first, parts=(), failure=Failure.PASSING, message="the network")
        return [first, *rest]


def test_a_stretch_that_failed_is_read_again_and_its_parts_are_taken_for_our_own(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t"):
        (result,) = take(database.dsn, store, runner=Failing())
    assert result.base is not None and result.base.row_count == 1000
    assert_equal(store, source, "public.t")


def test_a_holder_that_is_ended_means_another_snapshot(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE application_name LIKE 'tailrace base%'"""
    with captured(database, store, source, "t"):
        (result,) = take(database.dsn, store, runner=Meddling(source, end))
    assert result.base is not None and result.base.row_count == 1000
    assert_equal(store, source, "public.t")


def test_f025_who_stands_in_the_way_is_named_and_the_wait_is_bounded(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    limits = replace(PATIENT, try_ms=100, wait_s=0.2)
    lines: list[str] = []
    with captured(database, store, source, "t"), database.connect() as writer:
        with writer.transaction():
            writer.execute("UPDATE t SET v = 'open' WHERE id = 1")
            with pytest.raises(SourceError, match=f"pid {writer.info.backend_pid}") as caught:
                take(
                    *(database.dsn, store, oid_of(source, "t")),
                    limits=limits,
                    show=lambda progress: lines.append(progress.waiting),
                )
            assert caught.value.retry
        assert any(f"pid {writer.info.backend_pid}" in line for line in lines)
        query = "SELECT count(*) FROM pg_replication_slots WHERE temporary"
        wait_until(lambda: source.execute(query).fetchone() == (0,))
        (result,) = take(database.dsn, store)
        assert result.base is not None


def test_f017_f019_a_long_transaction_that_crosses_the_beginning_is_not_seen_in_part(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    """It has written the table before it was published, and writes it again after."""
    with database.connect() as writer, Running(settings(database.dsn), store) as capture:
        with writer.transaction():
            writer.execute("LOCK TABLE pg_class IN ACCESS SHARE MODE")
            capture.wait_for_stream()
            writer.execute("INSERT INTO t VALUES (-1, 'before')")
            taking = threading.Thread(target=take, args=(database.dsn, store, oid_of(source, "t")))
            taking.start()
            writer.execute("INSERT INTO t VALUES (-2, 'meanwhile')")
            time.sleep(0.2)
            writer.execute("UPDATE t SET v = 'again' WHERE id < 5")
        taking.join(120)
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")


def test_two_at_once_are_refused(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.bases.take.LOCK_S", 0.3)
    with captured(database, store, source, "t"):
        errors: list[SourceError] = []

        class Second(ThreadRunner):
            def run(
                self, reading: Reading, store: Store, stretches: Sequence[Stretch]
            ) -> list[Outcome]:
                with pytest.raises(SourceError, match="another process is taking") as caught:
                    take(database.dsn, store, oid_of(source, "t"))
                errors.append(caught.value)
                return super().run(reading, store, stretches)

        take(database.dsn, store, runner=Second())
        assert len(errors) == 1


def test_of_two_nodes_one_takes_the_base_of_a_new_table(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t"):

        def late_taker(dsn: str, stop: threading.Event) -> BaseTaker:
            take(dsn, store)
            return BaseTaker(BaseSettings(dsn, NAMES, PATIENT), store, ThreadRunner(2), stop=stop)

        node = AutomaticBases(store, NAMES, dsn=lambda: database.dsn, taker=late_taker)
        node.turn()
        bases = [found for found in store.list(layout.BASES) if found.key.endswith("base.json")]
        assert len(bases) == 1


def test_a_snapshot_that_is_held_for_too_long_is_given_up(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t"):
        (result,) = take(database.dsn, store, limits=replace(PATIENT, snapshot_s=-1.0))
        assert "vacuum could clean up nothing" in str(result.error)
        assert newest_positions(store) == {}


class Refusing(ThreadRunner):
    """Cannot read one of the tables."""

    def __init__(self, oid: int, error: TailraceError) -> None:
        super().__init__()
        self._oid = oid
        self._error = error

    def run(self, reading: Reading, store: Store, stretches: Sequence[Stretch]) -> list[Outcome]:
        if self._oid in reading.columns:
            raise self._error
        return super().run(reading, store, stretches)


@pytest.mark.parametrize("retry", [False, True])
def test_a_table_that_cannot_be_read_does_not_keep_the_others_from_their_bases(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    retry: bool,
) -> None:
    monkeypatch.setattr("tailrace.bases.take.GROUP_BYTES_MAX", 0)
    source.execute("CREATE TABLE other AS SELECT 1 AS id")
    source.execute("ALTER TABLE other ADD PRIMARY KEY (id)")
    with captured(database, store, source, "t", "other"):
        bad, good = (oid_of(source, name) for name in ("t", "other"))
        runner = Refusing(bad, TailraceError("it takes too long", retry=retry))
        results = take(database.dsn, store, bad, good, runner=runner)
    assert {result.table: str(result.error) for result in results} == {
        "public.t": "it takes too long",
        "public.other": "None",
    }


def test_a_base_of_another_database_is_never_put_into_the_log(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    with captured(database, store, source, "t"):
        pass
    with database.server.database() as other, other.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(ConfigError, match="belongs to another database"):
            take(other.dsn, store, oid_of(connection, "t"))


def test_progress_is_shown_here_and_in_postgres(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("ANALYZE t")
    seen: list[tuple[int, float]] = []
    names: set[str] = set()

    def show(progress: BaseProgress) -> None:
        query = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE %s"
        names.update(name for (name,) in source.execute(query, ["tailrace base%"]))
        seen.append((progress.row_count, progress.share))
        with connect(database.dsn) as conn:
            names.update(base.what for base in bases_under_way(conn))

    with captured(database, store, source, "t"):
        take(database.dsn, store, show=show)
    assert seen[-1] == (1000, 1.0) and seen == sorted(seen)
    assert {"tailrace base 100% public.t", "100% public.t"} <= names


@newest_version
def test_f045_memory_of_a_base_does_not_follow_the_table(
    database: Database, source: psycopg.Connection, store: FileStore, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE large (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO large SELECT g, repeat('x', 1500) FROM generate_series(1, 32000) g")
    output = tmp_path / "said"
    with captured(database, store, source, "t", "large"):
        oids = [str(oid_of(source, table)) for table in ("t", "large")]
        start(weigh, database.dsn, store.url, *oids, failpoint="", output=output).join()
    base = newest_bases(store)[int(oids[1])]
    assert (base.row_count, len(base.parts) > 30) == (32_000, True)
    # The table has 48 MB.
    assert int(output.read_text()) < 32_000_000


@pytest.mark.parametrize("seed", range(3))
def test_f024_under_writers_the_base_and_what_follows_are_the_source(
    database: Database, source: psycopg.Connection, store: FileStore, seed: int
) -> None:
    """Open transactions, savepoints and prepared ones cross every step; asked for twice."""
    stop = threading.Event()

    def write(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        with database.connect() as connection:
            while not stop.is_set():
                _transaction(connection, rng, number)

    writers = [threading.Thread(target=write, args=[number]) for number in range(6)]
    for writer in writers:
        writer.start()
    try:
        with captured(database, store, source, "t") as capture:
            for _ in range(2):
                (result,) = take(database.dsn, store, oid_of(source, "t"))
                assert result.base is not None, result.error
            stop.set()
            for writer in writers:
                writer.join()
            wait_caught_up(capture, source)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert_equal(store, source, "public.t")


def _transaction(connection: psycopg.Connection, rng: random.Random, number: int) -> None:
    """Each writer has keys of its own, so that none waits for another."""
    gid = sql.Literal(f"{connection.info.dbname}-{number}")
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for _ in range(rng.randrange(1, 6)):
            key = rng.randrange(200) * 6 + number
            if rng.random() < 0.2:
                cursor.execute("SAVEPOINT s")
            match rng.randrange(4):
                case 0:
                    cursor.execute("DELETE FROM t WHERE id = %s", [key])
                case 1:
                    cursor.execute("UPDATE t SET v = v || '!' WHERE id = %s", [key])
                case _:
                    cursor.execute(
                        "INSERT INTO t VALUES (%s, 'w') ON CONFLICT (id) DO UPDATE SET v = 'w'",
                        [key],
                    )
            time.sleep(rng.random() * 0.01)
        if rng.random() < 0.2:
            cursor.execute("ROLLBACK")
        elif rng.random() < 0.2:
            cursor.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
            time.sleep(rng.random() * 0.01)
            cursor.execute(sql.SQL("COMMIT PREPARED {}").format(gid))
        else:
            cursor.execute("COMMIT")
