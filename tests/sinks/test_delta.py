"""What a lake table is beyond its rows: exactly-once records, commits, files, types, modes."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tailrace.errors import SchemaError, SinkError
from tailrace.model import Op, PgType, ReplicaIdentity
from tailrace.sinks.delta import EmbeddedEngine, Mode, table_uri
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.spark import SparkEngine
from tailrace.sinks.delta.target import Target
from tests.sinks.conftest import SPARK
from tests.sinks.harness import QUIET, DeltaHarness, sorted_rows
from tests.sinks.source import Source, batch_of, load_of, relation
from tests.sinks.test_fold import ACTIONS, act


@pytest.fixture
def changelog(tmp_path: Path) -> Iterator[DeltaHarness]:
    made = DeltaHarness(str(tmp_path / "changelog"), None, replace(QUIET, mode=Mode.APPEND))
    yield made
    made.close()


def filled(lake: DeltaHarness) -> Source:
    source = Source()
    source.insert(id=1, doc="large", n=1)
    source.insert(id=2, n=2)
    lake.sink.write(batch_of(1, source.take()))
    return source


def commits(lake: DeltaHarness, source: Source) -> list[list[dict[str, object]]]:
    """Each commit's actions."""
    log = Path(table_uri(lake.path, source.relation), "_delta_log")
    files = sorted(log.glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_rows_and_record_are_one_commit_with_a_note_of_the_range(lake: DeltaHarness) -> None:
    source = filled(lake)
    source.update(1, n=10)
    lake.sink.write(batch_of(2, source.take()))
    created, first, second = commits(lake, source)
    assert not any("txn" in action for action in created)
    for sequence, actions in enumerate((first, second), start=1):
        (txn,) = [action["txn"] for action in actions if "txn" in action]
        assert isinstance(txn, dict)
        assert (txn["appId"], txn["version"]) == ("tailrace:lake", sequence)
        assert any("add" in action for action in actions)
        (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
        assert isinstance(info, dict)
        assert json.loads(info["userMetadata"]) == {
            "tailrace": {
                "stream": "lake",
                "sequence": sequence,
                "after": f"0/{sequence * 0x1000:X}",
                "upto": f"0/{(sequence + 1) * 0x1000:X}",
            }
        }


def test_f102_record_outlives_the_log_files_that_a_checkpoint_replaces(
    lake: DeltaHarness,
) -> None:
    source = filled(lake)
    source.update(1, n=10)
    batch = batch_of(2, source.take())
    lake.sink.write(batch)
    source.update(1, n=10)
    lake.sink.write(batch_of(1, source.take(), stream="other"))
    lake.table(source.relation).create_checkpoint()
    log = Path(table_uri(lake.path, source.relation), "_delta_log")
    for file in sorted(log.glob("*.json"))[:-1]:
        file.unlink()
    source.update(1, n=11)
    lake.sink.write(batch_of(3, source.take()))
    lake.sink.write(batch)
    assert lake.rows(source.relation) == source.expected()
    assert lake.sink.committed("lake", [source.relation]) == {"public.orders": 3}


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_f082_commit_on_a_version_that_was_overtaken_is_refused(
    tmp_path: Path, sequence: int
) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = filled(lake)
    zombie = Target.open(table_uri(lake.path, source.relation))
    assert zombie is not None
    source.update(1, n=10)
    lake.sink.write(batch_of(2, source.take()))
    rows = zombie.table.to_pyarrow_table()
    for write in (EmbeddedEngine().append, EmbeddedEngine().overwrite):
        with pytest.raises(CommitFailedError):
            write(zombie, rows, Commit.of(batch_of(sequence)))
    assert lake.rows(source.relation) == source.expected()
    lake.close()


@pytest.mark.parametrize("again", [False, True])
def test_f090_all_files_of_a_batch_are_synced_when_it_is_delivered(
    lake: DeltaHarness, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    source = filled(lake)
    source.update(1, n=10)
    batch = batch_of(2, source.take())
    if again:
        lake.sink.write(batch)
    synced: set[str] = set()
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    lake.sink.write(batch)
    directory = Path(table_uri(lake.path, source.relation))
    added = [action["add"] for action in commits(lake, source)[-1] if "add" in action]
    files = [directory / str(add["path"]) for add in added if isinstance(add, dict)]
    log = directory / "_delta_log"
    expected = [*files, log / f"{2:020}.json", log, directory, Path(lake.path)]
    assert files and synced >= {str(path) for path in expected}


@pytest.mark.parametrize("is_url", [False, True])
def test_f088_failed_sync_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_url: bool
) -> None:
    place = tmp_path / "a lake"
    lake = DeltaHarness(place.as_uri() if is_url else str(place), None)
    source = Source()
    source.insert(id=1)

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SinkError, match="cannot be synced") as caught:
        lake.sink.write(batch_of(1, source.take()))
    assert not caught.value.retry and caught.value.hint
    lake.close()


@pytest.mark.parametrize("first", ["deltalake", "delta-spark"])
@pytest.mark.spark
@pytest.mark.server
def test_engines_take_over_from_each_other(
    tmp_path: Path, delta_session: SparkSession, first: str
) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    sinks = [lake.open(EmbeddedEngine()), lake.open(SparkEngine(delta_session))]
    if first == "delta-spark":
        sinks.reverse()
    source = Source()
    source.insert(id=1, doc="large", n=1)
    sinks[0].write(batch_of(1, source.take()))
    source.update(1, n=2, unchanged=["doc"])
    source.insert(id=2)
    batch = batch_of(2, source.take())
    sinks[1].write(batch)
    sinks[0].write(batch)
    assert lake.rows(source.relation) == source.expected()
    assert lake.table(source.relation).version() == 2
    lake.close()


EXTREMES: dict[str, tuple[int, list[object]]] = {
    "id": (PgType.INT8, [-(1 << 63), (1 << 63) - 1, 0]),
    "flag": (PgType.BOOL, [True, False, None]),
    "small": (PgType.INT2, [-(1 << 15), (1 << 15) - 1, None]),
    "real": (PgType.FLOAT4, [0.5, float("inf"), None]),
    "double": (PgType.FLOAT8, [5e-324, float("-inf"), None]),
    "amount": (PgType.NUMERIC, [Decimal("9999999999.99"), Decimal("-0.01"), None]),
    "bytes": (PgType.BYTEA, [b"\x00\xff", b"", None]),
    "day": (PgType.DATE, [date.min, date.max, None]),
    "at": (PgType.TIMESTAMP, [datetime.min, datetime.max, None]),
    "atz": (
        PgType.TIMESTAMPTZ,
        [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), None],
    ),
    "text": (PgType.TEXT, ["", "\U0001f600 ' \\ \" ` \x7f", None]),
}


def test_values_of_every_type_arrive_as_they_are(lake: DeltaHarness) -> None:
    source = Source(relation(columns={name: oid for name, (oid, _) in EXTREMES.items()}))
    for at in range(3):
        source.insert(**{name: values[at] for name, (_, values) in EXTREMES.items()})
    lake.sink.write(batch_of(1, source.take()))
    assert lake.rows(source.relation) == source.expected()
    for key in list(source.rows):
        source.update(*key, flag=True)
    lake.sink.write(batch_of(2, source.take()))
    assert lake.rows(source.relation) == source.expected()
    fields = {field.name: field.type for field in lake.table(source.relation).schema().fields}
    assert str(fields["at"]) != str(fields["atz"])


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(["k" * 100 + f"{n:03}" for n in range(4)], id="long"),
        pytest.param(["\U0010ffff" * 40 + end for end in "abcd"], id="no greater prefix"),
        pytest.param(["it's", "back\\slash", "x' OR '1'='1", ""], id="quotes"),
    ],
)
def test_text_keys_match_whatever_the_statistics_keep_of_them(
    lake: DeltaHarness, keys: list[str]
) -> None:
    source = Source(relation(key=("part",)))
    for key in keys:
        source.insert(part=key, n=0)
    lake.sink.write(batch_of(1, source.take()))
    for sequence, key in enumerate((keys[0], keys[3]), start=2):
        source.update(key, n=sequence)
        lake.sink.write(batch_of(sequence, source.take()))
    assert lake.rows(source.relation) == source.expected()


@pytest.mark.slow
def test_merges_of_scattered_keys_leave_many_files(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = Source()
    source.insert(id=0, doc="x", n=0)
    one = source.take()
    count = 40_000
    # Values that do not compress much: 40 MB.
    rng = random.Random(7)
    doc = pa.array([rng.randbytes(512).hex() for _ in range(count)])
    ids = pa.array(range(count), pa.int64())
    many = one.rows.take(pa.array([0] * count)).set_column(0, "id", ids).set_column(2, "doc", doc)
    lake.sink.write(batch_of(1, replace(one, rows=many)))
    scattered = many.take(pa.array(range(0, count, 50)))
    for sequence in (2, 3):
        lake.sink.write(batch_of(sequence, replace(one, rows=scattered)))
    assert lake.table(source.relation).count() == count
    sizes = pa.table(lake.table(source.relation).get_add_actions())["size_bytes"].to_numpy()
    assert len(sizes) > 1 and sizes.max() < 10 << 20
    lake.close()


def test_append_mode_keeps_every_change(changelog: DeltaHarness) -> None:
    source = Source(relation(key=()))
    changelog.sink.prepare(source.relation)
    source.insert(id=1, n=1)
    source.truncate()
    source.insert(id=1, n=1)
    batch = batch_of(1, source.take())
    changelog.sink.write(batch)
    changelog.sink.write(batch)
    found = changelog.table(source.relation).to_pyarrow_table().sort_by("_commit_lsn")
    assert found.column("_op").to_pylist() == [Op.INSERT, Op.TRUNCATE, Op.INSERT]
    assert found.column_names == batch.tables[0].rows.column_names


def test_append_mode_adds_new_columns_to_the_old_row_as_well(changelog: DeltaHarness) -> None:
    source = Source()
    source.insert(id=1)
    changelog.sink.write(batch_of(1, source.take()))
    source.add_column("extra col", PgType.TIMESTAMP)
    source.update(1, unchanged=(), **{"id": 2, "extra col": datetime(2026, 1, 15)})
    changelog.sink.write(batch_of(2, source.take()))
    found = changelog.table(source.relation).to_pyarrow_table().sort_by("_commit_lsn").to_pylist()
    assert [row["extra col"] for row in found] == [None, datetime(2026, 1, 15)]
    assert found[1]["_before"]["id"] == 1 and found[1]["_before"]["extra col"] is None


def test_append_mode_follows_the_shape_and_so_do_old_rows(changelog: DeltaHarness) -> None:
    source = Source(relation(identity=ReplicaIdentity.FULL))
    source.insert(id=1, part="p", n=1)
    changelog.sink.write(batch_of(1, source.take()))
    source.drop_column("part")
    source.update(1, n=2)
    changelog.sink.write(batch_of(2, source.take()))
    source.retype_column("n", PgType.INT8)
    source.add_column("extra")
    source.update(1, n=1 << 40, extra="e")
    changelog.sink.write(batch_of(3, source.take()))
    found = changelog.table(source.relation).to_pyarrow_table().sort_by("_commit_lsn").to_pylist()
    assert [(row["part"], row["n"], row["extra"]) for row in found] == [
        ("p", 1, None),
        (None, 2, None),
        (None, 1 << 40, "e"),
    ]
    assert [row["_before"] and row["_before"]["n"] for row in found] == [None, 1, 2]
    source.rename_column("doc", "body")
    source.update(1, body="text")
    with pytest.raises(SchemaError, match="rename"):
        changelog.sink.write(batch_of(4, source.take()))
    changelog.sink.load(load_of(5, source), source.base())
    source.update(1, body="more")
    changelog.sink.write(batch_of(6, source.take()))
    last = (
        changelog.table(source.relation).to_pyarrow_table().sort_by("_commit_lsn").to_pylist()[-1]
    )
    assert (last["body"], last["doc"], last["_before"]["body"]) == ("more", None, "text")


def test_append_mode_loads_behind_a_truncate(changelog: DeltaHarness) -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.insert(id=2, n=2)
    source.take()
    changelog.sink.load(load_of(1, source), source.base())
    source.delete(2)
    source.add_column("extra")
    source.insert(id=3, extra="x")
    source.take()
    for _ in range(2):
        changelog.sink.load(load_of(2, source), source.base())
    found = changelog.table(source.relation).to_pyarrow_table()
    found = found.sort_by([("_commit_lsn", "ascending"), ("_ordinal", "ascending")])
    assert [(row["_op"], row["id"], row["extra"]) for row in found.to_pylist()] == [
        (Op.INSERT, 1, None),
        (Op.INSERT, 2, None),
        (Op.TRUNCATE, None, None),
        (Op.INSERT, 1, None),
        (Op.INSERT, 3, "x"),
    ]
    assert set(found.column("_origin").to_pylist()) == {"snapshot"}
    assert len(set(found.column("_commit_ts").to_pylist())) == 2


@pytest.mark.parametrize("modes", list(permutations(Mode, 2)))
def test_table_of_the_other_mode_is_refused(tmp_path: Path, modes: tuple[Mode, Mode]) -> None:
    first, second = (DeltaHarness(str(tmp_path), None, replace(QUIET, mode=mode)) for mode in modes)
    first.sink.prepare(relation())
    with pytest.raises(SchemaError, match="another mode"):
        second.sink.prepare(relation())
    first.close()
    second.close()


def test_table_that_something_else_made_is_refused(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    uri = table_uri(lake.path, relation())
    write_deltalake(uri, pa.table({"id": [1]}))
    with pytest.raises(SchemaError, match="something else"):
        lake.sink.prepare(relation())
    lake.close()


def test_table_with_column_mapping_is_refused(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    log = Path(table_uri(lake.path, relation()), "_delta_log")
    lake.sink.prepare(relation())
    (first,) = log.glob("*.json")
    mapped = [json.loads(line) for line in first.read_text().splitlines()]
    for action in mapped:
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    first.write_text("\n".join(map(json.dumps, mapped)))
    with pytest.raises(SinkError, match="column mapping"):
        lake.sink.prepare(relation())
    lake.close()


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=st.lists(st.lists(ACTIONS, max_size=12), max_size=5))
def test_merging_any_split_into_batches_gives_the_rows_of_the_source(
    tmp_path: Path, batches: list[list[tuple[Any, ...]]]
) -> None:
    source = Source(relation(key=("id", "part")))
    lake = DeltaHarness(str(tmp_path / uuid4().hex), None)
    lake.sink.prepare(source.relation)
    for sequence, actions in enumerate(batches):
        for action in actions:
            act(source, action)
        batch = batch_of(sequence, source.take())
        lake.sink.write(batch)
        lake.sink.write(batch)
        assert lake.rows(source.relation) == source.expected()
    lake.close()


def test_tables_made_at_the_same_time_by_two_writers_are_one(tmp_path: Path) -> None:
    uri = table_uri(str(tmp_path), relation())
    schema = pa.schema([("id", pa.int64())])
    for _ in range(2):
        assert Target.create(uri, schema).table.version() == 0
    assert Schema.from_arrow(schema) == DeltaTable(uri).schema()


@pytest.mark.parametrize("made", [pytest.param("delta-spark", marks=SPARK)])
def test_spark_reads_the_lake_like_any_other_reader(
    tmp_path: Path, delta_session: SparkSession, made: str
) -> None:
    lake = DeltaHarness(str(tmp_path), delta_session)
    source = filled(lake)
    frame = delta_session.read.format("delta").load(table_uri(lake.path, source.relation))
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    lake.close()


@pytest.mark.spark
@pytest.mark.server
def test_deletion_vectors_mark_rows_instead_of_writing_their_files_anew(
    tmp_path: Path, delta_session: SparkSession
) -> None:
    lake = DeltaHarness(str(tmp_path), delta_session, replace(QUIET, deletion_vectors=True))
    source = Source()
    for row in range(100):
        source.insert(id=row, doc="large", n=row)
    lake.sink.write(batch_of(1, source.take()))
    source.update(1, n=10, unchanged=["doc"])
    source.delete(50)
    lake.sink.write(batch_of(2, source.take()))
    adds = [action["add"] for action in commits(lake, source)[-1] if "add" in action]
    assert any(isinstance(add, dict) and add.get("deletionVector") for add in adds)
    source.update(1, id=200, unchanged=["doc"])
    lake.sink.write(batch_of(3, source.take()))
    scan = lake.table(source.relation).scan()
    rows = pa.table(pa.RecordBatchReader.from_stream(scan).read_all())
    assert sorted_rows(rows, source.relation) == source.expected()
    lake.sink.load(load_of(4, source), source.base())
    source.delete(2)
    lake.sink.write(batch_of(5, source.take()))
    frame = delta_session.read.format("delta").load(table_uri(lake.path, source.relation))
    assert {row.id for row in frame.collect()} == {key[0] for key in source.rows}
    lake.close()
