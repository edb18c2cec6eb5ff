"""Repairs: only the rows that differ, as a batch of the stream, whoever dies and whoever runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.sinks.columns import VALID_TO
from tailrace.sinks.delta.target import Target
from tailrace.spark.selection import Selection
from tailrace.streams.record import StreamRecord
from tailrace.verify import stream
from tests.nursery import die
from tests.server import Database, older_version
from tests.streams.by_hand import STREAM
from tests.verify.flow import FILL, THINGS, Flow, Watched, flowing, repair


def _plant(flow: Flow) -> None:
    """One difference of each kind: a row lost, changed, added, and one that is there twice."""
    table = flow.lake_table()
    twice = _read(flow, "id = 8")
    table.delete("id = 5")
    table.update({"label": "'wrong'"}, predicate="id = 6")
    table.update({"ratio": "NULL"}, predicate="id = 7")
    write_deltalake(flow.lake_table(), twice, mode="append")
    added = twice.set_column(0, "id", pa.array([9999], pa.int64()))
    write_deltalake(flow.lake_table(), added, mode="append")


PLANTED = ["5", "6", "7", "8", "9999"]


def _read(flow: Flow, condition: str = "") -> pa.Table:
    target = Target.open(flow.lake_table().table_uri)
    assert target is not None
    return target.read_range(condition)


def _rows(flow: Flow) -> list[dict[str, object]]:
    return _read(flow).sort_by("id").to_pylist()


def test_a_repair_sets_the_rows_that_differ_and_no_others(
    database: Database, tmp_path: Path
) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        before = _rows(flow)
        _plant(flow)
        assert flow.unlike() == PLANTED
        result = flow.table(repair=True)
        assert (result.equal, result.repaired_rows, result.differences) == (True, 5, ())
        assert _rows(flow) == before
        assert flow.table(repair=True).repaired_rows == 0
        flow.deliver("UPDATE things SET label = 'after' WHERE id < 20")
        assert flow.unlike() == []


@pytest.mark.spark
def test_either_engine_repairs_a_table_with_deletion_vectors(
    database: Database, tmp_path: Path, delta_session: SparkSession
) -> None:
    options = {"deletion_vectors": True, "compact_after": 0}
    with flowing(database, tmp_path, options=options, session=delta_session) as flow:
        flow.deliver(FILL)
        before = _rows(flow)
        table = f"delta.`{flow.lake_table().table_uri}`"
        for session in (None, delta_session):
            delta_session.sql(f"DELETE FROM {table} WHERE id = 5")
            delta_session.sql(f"UPDATE {table} SET label = 'wrong' WHERE id = 6")
            assert "deletionVector" in _newest_commit(flow)
            result = flow.repair(session)
            assert (result.equal, result.repaired_rows, result.problem) == (True, 2, "")
            assert _rows(flow) == before
            (count,) = delta_session.sql(f"SELECT count(*) FROM {table}").first() or (0,)
            assert count == 500
        delta_session.sql(f"DELETE FROM {table} WHERE id = 7")
        config = _config(flow, tmp_path, engine="delta-spark", deletion_vectors=True)
        # The command finds the session that is there.
        done = CliRunner().invoke(app, ["verify", "--config", str(config), "--repair"])
        assert (done.exit_code, _rows(flow)) == (0, before), done.output
        assert "Spark" in _newest_commit(flow)


def _newest_commit(flow: Flow) -> str:
    log = flow.lake / "public" / "things" / "_delta_log"
    return (log / f"{flow.lake_table().version():020}.json").read_text()


def test_a_repair_that_only_spark_can_write_is_refused_with_a_hint(
    database: Database, tmp_path: Path
) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        flow.lake_table().delete("id = 5")
        features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
        log = flow.lake / "public" / "things" / "_delta_log"
        number = flow.lake_table().version() + 1
        (log / f"{number:020}.json").write_text(json.dumps({"protocol": features}))
        result = flow.repair()
        assert not result.equal and "rowTracking" in result.problem
        assert "engine: delta-spark" in result.problem


def test_a_repair_carries_only_those_rows_and_says_so(database: Database, tmp_path: Path) -> None:
    with flowing(database, tmp_path, options={"mode": "append"}) as flow:
        flow.deliver(FILL)
        flow.lake_table().delete("id = 5")
        assert flow.table(repair=True).equal
        added = pa.table(
            flow.lake_table().to_pyarrow_table(
                filters=[("_origin", "=", "repair"), ("_op", "=", "insert")]
            )
        )
        assert added.column("id").to_pylist() == [5]


def test_a_table_that_gets_a_column_while_it_is_repaired_is_repaired_all_the_same(
    database: Database, tmp_path: Path
) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        _plant(flow)
        altered: list[None] = []

        def alter() -> None:
            if not altered:
                altered.append(None)
                flow.deliver("ALTER TABLE things ADD w int", "UPDATE things SET w = 1 WHERE id < 9")

        result = flow.table(repair=True, watched=Watched(on_word=("waiting for stream", alter)))
        assert result.equal, result.problem
        assert flow.unlike() == []


@older_version
def test_a_history_keeps_what_it_had_and_opens_what_was_lost(
    database: Database, tmp_path: Path
) -> None:
    with flowing(database, tmp_path, options={"mode": "history"}) as flow:
        flow.deliver(FILL)
        flow.lake_table().update({"label": "'wrong'"}, predicate="id = 6")
        assert flow.table(repair=True).equal
        versions = pa.table(flow.lake_table().to_pyarrow_table(filters=[("id", "=", 6)]))
        by_end = sorted(versions.to_pylist(), key=lambda row: row[VALID_TO] is None)
        assert [row["label"] for row in by_end] == ["wrong", "label 6"]


@older_version
def test_rows_of_a_stream_that_has_a_key_of_its_own_are_repaired_by_it(
    database: Database, tmp_path: Path
) -> None:
    own = Selection.of(columns=None, where=None, key=("label",))
    full = "ALTER TABLE things REPLICA IDENTITY FULL"
    with flowing(database, tmp_path, THINGS, full, selection=own) as flow:
        flow.deliver(FILL)
        before = _rows(flow)
        _plant(flow)
        flow.lake_table().update({"label": "'nobody'"}, predicate="id = 9")
        flow.lake_table().update({"id": "-13"}, predicate="id = 13")
        assert flow.table(repair=True).equal
        assert _rows(flow) == before


def test_a_stream_that_runs_goes_on_behind_a_repair(database: Database, tmp_path: Path) -> None:
    """It finds the number of its next batch taken, by a repair that it could deliver itself."""
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        run = flow.start()
        flow.execute("UPDATE things SET label = 'one' WHERE id = 1")
        flow.catch_up()
        assert run.step()
        _plant(flow)
        assert flow.table(repair=True).equal
        flow.execute("UPDATE things SET label = 'two' WHERE id IN (1, 5, 6)")
        flow.catch_up()
        assert run.step()
        assert flow.unlike() == []


def test_a_stream_that_runs_goes_on_behind_many_repairs(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many that the record of the first, whose number it wants, is gone."""
    monkeypatch.setattr(stream, "_REPAIR_ROWS", 1)
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        run = flow.start()
        flow.lake_table().update({"label": "'wrong'"}, predicate="id < 6")
        assert flow.table(repair=True).repaired_rows == 5
        flow.execute("UPDATE things SET label = 'two' WHERE id IN (1, 7)")
        flow.catch_up()
        assert run.step()
        assert flow.unlike() == []


def test_a_repair_is_as_of_where_the_stream_stands(database: Database, tmp_path: Path) -> None:
    """Rows are read under a snapshot, and the stream has gone on since: to what it has delivered
    for a row, to the key that the row has moved to, and to the end of the row.
    """
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        for key in (5, 6, 7, 8):
            flow.lake_table().update({"label": "'wrong'"}, predicate=f"id = {key}")

        def go_on() -> None:
            flow.deliver(
                "UPDATE things SET label = 'newer' WHERE id = 5",
                "UPDATE things SET id = 1006 WHERE id = 6",
                "DELETE FROM things WHERE id = 7",
            )

        watched = Watched(on_word=("repairing", go_on))
        assert flow.table(repair=True, watched=watched).equal
        assert flow.unlike() == []


_KILLED = [
    *("repair.before_fix", "repair.after_fix", "repair.before_write"),
    *("delta.after_commit", "repair.after_write"),
]


def _config(flow: Flow, directory: Path, **sink: object) -> Path:
    file = directory / "tailrace.yaml"
    dsn = flow.database.dsn.replace("'", "")
    options = {"type": "delta", "path": str(flow.lake), **sink}
    file.write_text(
        f'source: {{dsn: "{dsn}"}}\n'
        f'log: {{url: "file:{directory / "log"}"}}\n'
        f"streams: {{{STREAM}: {{sink: {json.dumps(options)}}}}}\n"
    )
    return file


def _killed(config: Path, failpoint: str) -> None:
    """Let the command die in a repair, as a process does."""
    command = [sys.executable, "-m", "tailrace.cli", "verify", "--repair"]
    environment = {**os.environ, "TAILRACE_FAILPOINT": failpoint}
    ended = subprocess.run(
        [*command, "--config", str(config)], env=environment, capture_output=True, timeout=300
    )
    assert ended.returncode == 137, ended.stderr


@pytest.mark.parametrize("failpoint", _KILLED)
def test_killed_in_a_repair_the_stream_goes_on_and_nothing_is_lost(
    database: Database, tmp_path: Path, failpoint: str
) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        flow.lake_table().delete("id = 5")
        told = (database.dsn, flow.store.url, str(flow.lake))
        die(repair, *told, failpoint=failpoint, output=tmp_path / "output.txt")
        flow.deliver("UPDATE things SET label = 'after' WHERE id = 6")
        # Once its number is taken, a repair is delivered by whoever comes next.
        expected = ["5"] if failpoint == "repair.before_fix" else []
        assert flow.unlike() == expected
        assert flow.table(repair=True).equal
        assert flow.lake_table().count() == 500


def test_left_over_repairs_are_finished_by_the_next(database: Database, tmp_path: Path) -> None:
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        flow.lake_table().delete("id = 5")
        config = _config(flow, tmp_path)
        _killed(config, "repair.after_fix")
        record = StreamRecord(flow.store, STREAM)
        newest = record.newest()
        assert newest is not None and newest.repair and not record.is_done(newest)
        done = CliRunner().invoke(app, ["verify", "--config", str(config), "--repair"])
        assert done.exit_code == 0, done.output
        assert "every lake table equals its source" in done.output
        assert flow.unlike() == []
