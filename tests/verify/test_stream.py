"""A stream's tables and their source, compared at one position while both go on."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import psycopg
import pytest

from tailrace.control.captured import captured_tables
from tailrace.errors import ConfigError, LogError, SinkError, SourceError
from tailrace.log.bases import newest_positions
from tailrace.log.gone import note_gone
from tailrace.log.wanted import wanted_bases
from tailrace.spark.selection import Selection
from tailrace.verify import standing
from tests.bases.taking import take
from tests.capture.running import NAMES, is_published
from tests.server import Database, both_versions, older_version
from tests.verify.flow import FILL, THINGS, Flow, Watched, flowing


def test_what_was_delivered_is_equal_and_told(database: Database, tmp_path: Path) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        watched = Watched()
        result = flow.table(watched=watched)
        assert (result.equal, result.source_rows, result.lake_rows) == (True, 500, 500), result
        assert watched.row_count == 1000
        assert "begin public.things" in watched.said


@both_versions
def test_f050_what_is_not_delivered_yet_is_folded_from_the_log(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STALLED_S", 0.0)
    table = "CREATE TABLE things (id bigint PRIMARY KEY, label text, ratio float8, big text)"
    with flowing(database, tmp_path, table) as flow:
        document = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) AS i)"
        # The last one does not send what is large, and all are one batch for an empty target.
        large = f"UPDATE things SET big = {document} WHERE id < 30"
        flow.deliver(FILL, large, "UPDATE things SET ratio = 1 WHERE id < 40")
        flow.execute(
            "UPDATE things SET label = 'only this is sent' WHERE id < 10",
            "UPDATE things SET id = id + 1000 WHERE id = 20",
            "DELETE FROM things WHERE id = 30",
            "INSERT INTO things VALUES (600, NULL, 'NaN')",
        )
        result = flow.table()
        assert (result.equal, result.source_rows, result.lake_rows) == (True, 500, 500), result
        flow.execute("TRUNCATE things", "INSERT INTO things VALUES (1, 'anew', '-0')")
        result = flow.table()
        assert (result.equal, result.source_rows, result.lake_rows) == (True, 1, 1), result
        flow.deliver()
        assert flow.table().equal


@both_versions
def test_f022_f061_a_table_that_is_read_anew_leaves_no_row_of_before_in_the_lake(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.housekeeping.TABLES_INTERVAL_S", 0.1)
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        flow.execute(
            "ALTER PUBLICATION tailrace_main SET TABLE things WHERE (id < 100)",
            "DELETE FROM things WHERE id > 400",
        )
        flow.capture.wait_until(lambda: wanted_bases(flow.store, newest_positions(flow.store)))
        # The mark is put just before the table is published again, and until then it is not read.
        flow.capture.wait_until(lambda: take(database.dsn, flow.store))
        flow.deliver("INSERT INTO things VALUES (401, 'later')")
        result = flow.table()
        assert (result.equal, result.source_rows, result.lake_rows) == (True, 401, 401), result


def _write(database: Database, number: int, stop: threading.Event) -> None:
    random = Random(number)
    with database.connect() as connection:
        while not stop.is_set():
            key = number + 4 * random.randrange(200)
            statements = [
                "INSERT INTO things VALUES (%(k)s, 'new', 1) ON CONFLICT (id) DO NOTHING",
                "UPDATE things SET label = 'again' WHERE id = %(k)s",
                "UPDATE things SET id = id + 4000 WHERE id = %(k)s",
                "DELETE FROM things WHERE id %% 4 = %(n)s AND id > 4000",
            ]
            try:
                with connection.transaction():
                    for statement in random.sample(statements, k=2):
                        connection.execute(statement, {"k": key, "n": number})
            except psycopg.errors.UniqueViolation:
                continue  # a row was moved there before


def _deliver(flow: Flow, stop: threading.Event) -> None:
    run = flow.start()
    while not stop.is_set():
        try:
            if not run.step():
                stop.wait(0.05)
        except SinkError as error:
            # Whoever writes to the lake beside the stream may win the race for a commit.
            assert error.retry
            run = flow.start()


@both_versions
def test_f018_equal_tables_are_equal_beside_writers_and_a_running_stream(
    database: Database, tmp_path: Path
) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        stop = threading.Event()
        threads = [threading.Thread(target=_write, args=[database, n, stop]) for n in range(3)]
        threads.append(threading.Thread(target=_deliver, args=[flow, stop]))
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                result = flow.table()
                assert result.equal, result
            # One that nobody writes; whoever changes the lake beside a stream has to try again.
            flow.execute("INSERT INTO things VALUES (-7, 'at rest', 0)")
            assert flow.table().equal
            _delete_from_lake(flow, "id = -7")
            assert flow.unlike() == ["-7"]
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _delete_from_lake(flow: Flow, predicate: str) -> None:
    from deltalake.exceptions import DeltaError

    for _ in range(50):
        try:
            flow.lake_table().delete(predicate)
            return
        except DeltaError:
            continue
    raise AssertionError("the stream is always faster")


@pytest.mark.parametrize(
    ("options", "version"),
    [({"mode": "append"}, 18), ({"mode": "history"}, 16), ({"soft_delete": True}, 18)],
    ids=str,
)
def test_every_mode_is_compared_by_what_it_says_is_there_now(
    database: Database, tmp_path: Path, options: dict[str, object]
) -> None:
    with flowing(database, tmp_path, options=options) as flow:
        flow.deliver(FILL)
        flow.deliver(
            "UPDATE things SET label = 'new' WHERE id < 10",
            "UPDATE things SET id = id + 1000 WHERE id = 20",
            "DELETE FROM things WHERE id = 30",
        )
        result = flow.table()
        assert (result.equal, result.source_rows, result.lake_rows) == (True, 499, 499), result
        flow.lake_table().delete("id = 40")
        assert flow.unlike() == ["40"]
        assert flow.table(repair=True).equal
        flow.deliver("UPDATE things SET label = 'later' WHERE id = 40")
        assert flow.unlike() == []


@older_version
def test_a_stream_of_some_columns_is_compared_by_these(database: Database, tmp_path: Path) -> None:
    chosen = Selection.of(columns=("id", "ratio"), where=None)
    with flowing(database, tmp_path, selection=chosen) as flow:
        flow.deliver(FILL)
        flow.deliver("UPDATE things SET ratio = '-Infinity' WHERE id = 4")
        assert flow.unlike() == []
        flow.lake_table().update({"ratio": "0"}, predicate="id = 5")
        assert flow.unlike() == ["5"]
        assert flow.table(repair=True).equal


def test_a_stream_of_some_rows_is_compared_by_these(database: Database, tmp_path: Path) -> None:
    chosen = Selection.of(columns=None, where="ratio >= 10.5 AND NOT label LIKE '%7' OR id = 1")
    with flowing(database, tmp_path, selection=chosen) as flow:
        flow.deliver(FILL)
        flow.deliver(
            "UPDATE things SET ratio = 11 WHERE id IN (2, 7)",
            "UPDATE things SET ratio = NULL WHERE id = 100",
        )
        result = flow.table()
        assert (result.equal, result.source_rows) == (True, result.lake_rows), result
        assert 300 < result.source_rows < 500
        flow.lake_table().update({"label": "'wrong'"}, predicate="id = 2")
        flow.lake_table().delete("id = 101")
        flow.lake_table().update({"id": "3"}, predicate="id = 1")
        assert flow.unlike() == ["1", "2", "3", "101"]
        assert flow.table(repair=True).equal


@older_version
def test_differences_are_told_by_range_and_key_whatever_the_key_is(
    database: Database, tmp_path: Path
) -> None:
    """Texts order by bytes on both sides, whatever the collation of the column."""
    table = 'CREATE TABLE pairs (a text, b date, "q %s" int, PRIMARY KEY (b, a))'
    fill = (
        "INSERT INTO pairs SELECT CASE WHEN i % 2 = 0 THEN 'é' ELSE 'Z' END || i,"
        " DATE '2024-01-01' + i % 700, i FROM generate_series(1, 12000) AS i"
    )
    with flowing(database, tmp_path, table) as flow:
        flow.deliver(fill)
        assert flow.unlike() == []
        flow.lake_table("pairs").delete("a = 'é400'")
        flow.lake_table("pairs").update({"`q %s`": "0"}, predicate="a = 'Z3' AND b = '2024-01-04'")
        result = flow.table()
        assert [list(each.key.values()) for each in result.differences] == [
            ["2024-01-04", "Z3"],
            ["2025-02-04", "é400"],
        ]
        assert len(result.ranges) == 2
        for each, found in zip(result.differences, result.ranges, strict=True):
            day = each.key["b"] or ""
            assert (found.low or "") <= day < (found.high or "~")


def test_a_table_that_the_stream_lacks_is_told_and_one_that_is_gone_is_not(
    database: Database, tmp_path: Path
) -> None:
    others = [f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("late", "dropped")]
    with flowing(database, tmp_path, THINGS, others[1]) as flow:
        flow.deliver(FILL)
        flow.execute(others[0], "DROP TABLE dropped")
        with database.connect() as connection:
            flow.capture.wait_until(lambda: is_published(connection, "late"))
        flow.catch_up()
        dropped = newest_positions(flow.store).keys() - _captured(flow)
        note_gone(flow.store, dropped)
        found = {each.table: (each.equal, each.problem) for each in flow.verify().tables}
        lacks = (False, "the stream does not have it")
        assert found == {"public.things": (True, ""), "public.late": lacks}
        flow.deliver()
        assert flow.verify().equal


def _captured(flow: Flow) -> set[int]:
    with flow.database.connect() as connection:
        return {each.oid for each in captured_tables(connection, NAMES)}


@older_version
def test_a_table_that_is_rewritten_meanwhile_is_compared_again(
    database: Database, tmp_path: Path
) -> None:
    """Under the snapshot it would look empty, without an error."""
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        begun: list[int] = []

        def truncate_once() -> None:
            begun.append(1)
            if len(begun) == 1:
                flow.deliver("TRUNCATE things", "INSERT INTO things VALUES (1)")

        watched = Watched(on_word=("begin", truncate_once))
        result = flow.table(watched=watched)
        assert (result.equal, result.source_rows) == (True, 1), result
        assert len(begun) == 2


def test_a_session_that_is_lost_is_an_error_of_ours(database: Database, tmp_path: Path) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                  WHERE application_name = 'tailrace_verify'"""
        watched = Watched(on_word=("waiting for stream", lambda: flow.execute(end)))
        with pytest.raises(SourceError) as caught:
            flow.table(watched=watched)
        assert caught.value.retry


def test_what_cannot_be_compared_is_refused_with_the_reason(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flowing(database, tmp_path) as flow:
        with pytest.raises(LogError, match="has not delivered anything yet"):
            flow.verify()
        flow.deliver(FILL)
        with pytest.raises(ConfigError, match=r"delivers no table public\.other"):
            flow.verify("public.other")
        flow.capture.stop()
        monkeypatch.setattr(standing, "LOG_S", 0.1)
        flow.execute("INSERT INTO things VALUES (0)")
        with pytest.raises(LogError, match="the log has not come to"):
            flow.verify()
