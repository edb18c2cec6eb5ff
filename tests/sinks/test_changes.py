"""What every sink that keeps every change promises, whatever it is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest

from tailrace.errors import SchemaError, SinkError, StoreError
from tailrace.model import PgType, ReplicaIdentity
from tailrace.sinks.columns import Mode
from tests.server import Server
from tests.sinks.change_harness import (
    ChangeHarness,
    DeltaChanges,
    ParquetHarness,
    PostgresChanges,
    folded,
)
from tests.sinks.harness import QUIET
from tests.sinks.source import NAN, Source, batch_of, load_of, relation


@pytest.fixture(params=["delta", "parquet", pytest.param("postgres", marks=pytest.mark.server)])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChangeHarness]:
    match request.param:
        case "delta":
            options = replace(QUIET, mode=Mode.APPEND)
            with closing(DeltaChanges(str(tmp_path / "lake"), None, options)) as lake:
                yield lake
        case "postgres":
            server: Server = request.getfixturevalue("postgres")
            with (
                server.database() as database,
                closing(PostgresChanges(database, Mode.APPEND)) as copy,
            ):
                yield copy
        case _:
            with closing(ParquetHarness(str(tmp_path))) as files:
                yield files


def deliver(harness: ChangeHarness, sequence: int, source: Source) -> None:
    known = harness.sink.committed("lake", [source.relation])
    harness.sink.write(batch_of(sequence, source.take(), known=list(known)))


def filled(harness: ChangeHarness) -> Source:
    """Three rows, delivered as sequence 1."""
    source = Source()
    harness.sink.prepare(source.relation)
    source.insert(id=1, part="a", doc="large one", amount=Decimal("1.50"), n=1)
    source.insert(id=2, part="b", doc="large two", amount=NAN, n=2)
    source.insert(id=3, part='c\\ "\t\n', n=3)
    deliver(harness, 1, source)
    return source


def expected(source: Source) -> list[tuple[object, ...]]:
    return sorted((tuple(map(str, row.values())) for row in source.rows.values()), key=repr)


def offsets(harness: ChangeHarness, source: Source) -> list[tuple[int, int]]:
    return [(row["_commit_lsn"], row["_ordinal"]) for row in harness.changes(source.relation)]


def assert_same(harness: ChangeHarness, source: Source) -> None:
    assert folded(harness.changes(source.relation), source.relation) == expected(source)


@pytest.mark.parametrize("identity", [ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL])
def test_f049_f054_every_change_is_there_once_and_folds_to_the_source(
    harness: ChangeHarness, identity: ReplicaIdentity
) -> None:
    source = Source(relation(identity=identity))
    source.insert(id=1, part="a", doc="large", amount=NAN, n=1)
    source.insert(id=2, part='b\\ "\t\n', amount=Decimal("1.50"), n=2)
    deliver(harness, 1, source)
    source.update(1, n=10, unchanged=["doc", "amount"])
    source.update(1, id=7, unchanged=["doc"], amount=None)
    source.delete(2)
    deliver(harness, 2, source)
    assert_same(harness, source)
    source.truncate()
    source.insert(id=2, part="after")
    deliver(harness, 3, source)
    assert_same(harness, source)
    found = offsets(harness, source)
    assert len(found) == len(set(found)) == 7
    assert [row["_op"] for row in harness.changes(source.relation)][2:5] == [
        *("update", "update", "delete"),
    ]


def test_f102_batch_that_comes_again_or_late_changes_nothing(harness: ChangeHarness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    second = batch_of(2, source.take())
    harness.sink.write(second)
    source.update(1, n=11)
    deliver(harness, 3, source)
    harness.sink.write(second)
    assert len(offsets(harness, source)) == 5
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 3}


def test_f082_two_writers_of_one_batch_apply_it_once(harness: ChangeHarness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    batch = batch_of(2, source.take())
    rivals = harness.rivals(Barrier(2, timeout=120))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(rival.write, batch) for rival in rivals]:
            done.result()
    assert_same(harness, source)
    assert len(offsets(harness, source)) == 4


def test_f081_half_applied_batch_is_completed_when_it_comes_again(harness: ChangeHarness) -> None:
    sources = [Source(relation(f"table {n}")) for n in range(2)]
    bad = Source(relation("bad", columns={"id": PgType.INT8, "_op": PgType.TEXT}))
    for source in sources:
        source.insert(id=1, n=1)
    tables = [source.take() for source in sources]
    broken = replace(tables[0], relation=bad.relation)
    with pytest.raises(SchemaError, match=r"public\.bad"):
        harness.sink.write(batch_of(1, broken, tables[0]))
    harness.sink.write(batch_of(1, *tables))
    for source in sources:
        assert_same(harness, source)


def test_records_of_streams_are_their_own(harness: ChangeHarness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    harness.sink.write(batch_of(1, source.take(), stream="other"))
    assert_same(harness, source)
    assert harness.sink.committed("other", [source.relation]) == {"public.orders": 1}


def test_f022_load_comes_behind_a_truncate_and_once(harness: ChangeHarness) -> None:
    source = filled(harness)
    source.delete(1)
    source.insert(id=9, amount=NAN)
    source.take()
    for sequence in (2, 2, 1):
        harness.sink.load(load_of(sequence, source), source.base())
    assert_same(harness, source)
    kinds = [row["_op"] for row in harness.changes(source.relation)]
    assert kinds == ["insert"] * 3 + ["truncate"] + ["insert"] * 3
    source.update(9, n=1)
    deliver(harness, 3, source)
    assert_same(harness, source)


@pytest.mark.parametrize(
    "harness", ["delta", pytest.param("postgres", marks=pytest.mark.server)], indirect=True
)
def test_f022_load_that_the_target_is_past_leaves_every_change_there_once(
    harness: ChangeHarness,
) -> None:
    source = filled(harness)
    source.update(1, n=10)
    deliver(harness, 2, source)
    load, base = load_of(3, source), source.base()
    source.update(1, n=11)
    source.insert(id=9, part="late")
    since = source.take()
    harness.sink.write(batch_of(3, since))
    # The second time for a stream that was reset: the same base, under another number.
    for sequence in (4, 6):
        harness.sink.load(replace(load, sequence=sequence), base)
        kinds = [(row["_op"], row["_origin"]) for row in harness.changes(source.relation)]
        assert Counter(kinds) == {
            ("insert", "wal"): 3,
            ("update", "wal"): 1,
            ("truncate", "snapshot"): 1,
            ("insert", "snapshot"): 3,
        }
        harness.sink.write(batch_of(sequence + 1, since))
        assert_same(harness, source)
        assert len(offsets(harness, source)) == 3 + 1 + 1 + 3 + 2


def test_first_load_needs_no_truncate(harness: ChangeHarness) -> None:
    source = Source()
    source.insert(id=1)
    source.take()
    harness.sink.load(load_of(1, source), source.base())
    assert [row["_op"] for row in harness.changes(source.relation)] == ["insert"]
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 1}


def test_load_that_fails_on_the_way_adds_nothing(harness: ChangeHarness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    source.take()

    def broken() -> Iterator[pa.Table]:
        yield from source.base()
        raise StoreError("the base cannot be read")

    with pytest.raises(StoreError, match="the base cannot be read"):
        harness.sink.load(load_of(2, source), broken())
    assert len(offsets(harness, source)) == 3
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 1}
    harness.sink.load(load_of(2, source), source.base())
    assert_same(harness, source)


@pytest.mark.parametrize("prepared", [False, True])
def test_target_that_vanished_is_not_begun_anew(harness: ChangeHarness, prepared: bool) -> None:
    source = filled(harness)
    harness.drop(source.relation)
    if prepared:
        harness.sink.prepare(source.relation)
    source.update(1, n=10)
    with pytest.raises(SinkError) as caught:
        harness.sink.write(batch_of(2, source.take(), known=["public.orders"]))
    assert caught.value.hint and not caught.value.retry
    assert harness.sink.committed("lake", [source.relation]) == {}
    harness.sink.load(load_of(3, source), source.base())
    assert_same(harness, source)


def test_f058_new_columns_and_wider_types_are_taken_over(harness: ChangeHarness) -> None:
    source = filled(harness)
    source.add_column("extra")
    source.retype_column("n", PgType.INT8)
    source.update(1, n=1 << 40, extra="e")
    deliver(harness, 2, source)
    source.drop_column("part")
    source.insert(id=4, n=4)
    deliver(harness, 3, source)
    assert_same(harness, source)


def test_f058_shape_that_does_not_fit_is_refused_and_nothing_added(
    harness: ChangeHarness,
) -> None:
    source = filled(harness)
    source.retype_column("n", PgType.TEXT)
    source.insert(id=4, n="four")
    with pytest.raises(SchemaError) as caught:
        deliver(harness, 2, source)
    assert caught.value.hint and caught.value.retry
    with pytest.raises(SchemaError) as caught:
        harness.sink.load(load_of(2, source), [])
    assert not caught.value.retry
    assert len(offsets(harness, source)) == 3


def test_table_without_a_key_is_taken(harness: ChangeHarness) -> None:
    source = Source(relation(key=()))
    harness.sink.prepare(source.relation)
    source.insert(id=1)
    deliver(harness, 1, source)
    assert [row["id"] for row in harness.changes(source.relation)] == [1]


def test_f069_odd_names_of_tables_and_columns(harness: ChangeHarness) -> None:
    names = ["a b", "a.b", "select", 'a"b', "a`b", "a'b", "ü", "a,b=;{}()\n\t", "a\\b", "%2F"]
    shape = relation(
        'we"ird/../`tab le`.ü',
        schema="..",
        key=names[:2],
        columns={**dict.fromkeys(names, PgType.TEXT), "Z": PgType.TEXT},
        identity=ReplicaIdentity.FULL,
    )
    source = Source(shape)
    for row in range(3):
        source.insert(**{name: f"{row}\\'`\"{name}\x01" for name in shape.column_names})
    deliver(harness, 1, source)
    first, second, *_ = source.rows
    source.update(*first, Z="z", unchanged=["ü", 'a"b'])
    source.delete(*second)
    deliver(harness, 2, source)
    assert_same(harness, source)
