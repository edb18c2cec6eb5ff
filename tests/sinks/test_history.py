"""One row per version, in a lake that forgets nothing; and deleted rows that are only marked."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import SchemaError, TargetLost
from tailrace.model import PgType, ReplicaIdentity
from tests.sinks.chronicle import Chronicle
from tests.sinks.conftest import HISTORY, SOFT_DELETE
from tests.sinks.harness import DeltaHarness
from tests.sinks.source import NAN, Source, batch_of, load_of, relation
from tests.sinks.test_fold import ACTIONS, act

ENDS = ["_valid_from", "_from_lsn", "_from_ordinal", "_valid_to", "_to_lsn", "_to_ordinal"]


def found(lake: DeltaHarness, source: Source, ends: list[str]) -> list[tuple[object, ...]]:
    names = [*source.relation.column_names, "_text", *ends]
    rows = lake.table(source.relation).to_pyarrow_table().select(names).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def story(source: Source, chronicle: Chronicle, lake: DeltaHarness) -> None:
    """Everything that can happen to a row, in four batches."""
    source.insert(id=1, doc="large", amount=NAN, n=1)
    source.insert(id=2, doc="other", amount=Decimal("1.50"), n=2)
    source.update(1, n=10, unchanged=["doc", "amount"])
    source.insert(id=3, n=3)
    source.delete(3)
    lake.sink.write(batch_of(1, chronicle.take()))
    source.update(1, n=11, unchanged=["doc", "amount"])
    source.update(1, id=7, unchanged=["doc", "amount"])
    source.update(7, n=12, unchanged=["doc"], amount=None)
    source.update(2, doc=None)
    source.insert(id=3, n=30)
    lake.sink.write(batch_of(2, chronicle.take()))
    source.delete(2)
    source.update(7, n=13, unchanged=["doc"])
    source.truncate()
    source.insert(id=1, doc="again", n=1)
    source.insert(id=8, n=8)
    source.truncate()
    source.insert(id=1, doc="last", n=2)
    source.update(1, n=3, unchanged=["doc"])
    lake.sink.write(batch_of(3, chronicle.take()))
    source.truncate()
    lake.sink.write(batch_of(4, chronicle.take()))


def test_every_version_begins_and_ends_with_its_change(history: DeltaHarness) -> None:
    source = Source()
    chronicle = Chronicle(source)
    story(source, chronicle, history)
    assert found(history, source, ENDS) == chronicle.rows()
    assert len(chronicle.every) == 14


def test_deleted_rows_keep_their_last_values_and_the_time(graveyard: DeltaHarness) -> None:
    source = Source()
    chronicle = Chronicle(source)
    story(source, chronicle, graveyard)
    assert found(graveyard, source, ["_deleted_at"]) == chronicle.graves()


def test_row_that_comes_back_takes_the_place_of_the_deleted_one(graveyard: DeltaHarness) -> None:
    source = Source()
    for sequence, step in enumerate((source.insert, source.delete, source.insert), start=1):
        step(1) if step == source.delete else source.insert(id=1, n=sequence)
        graveyard.sink.write(batch_of(sequence, source.take()))
    assert [row[:-1] for row in found(graveyard, source, ["_deleted_at"])] == source.expected()


def test_deleted_row_does_not_lend_its_values_to_one_that_comes_back(
    graveyard: DeltaHarness,
) -> None:
    """A where has let the row go, and it was given another value while it was out."""
    source = Source()
    source.insert(id=1, doc="old")
    graveyard.sink.write(batch_of(1, source.take()))
    source.delete(1)
    graveyard.sink.write(batch_of(2, source.take()))
    source.insert(id=1, doc="new")
    source.take()
    source.update(1, n=1, unchanged=["doc"])
    with pytest.raises(TargetLost, match="lacks a row"):
        graveyard.sink.write(batch_of(3, source.take()))


def test_load_ends_and_begins_only_what_differs(history: DeltaHarness) -> None:
    source = Source()
    chronicle = Chronicle(source)
    for row in range(4):
        source.insert(id=row, doc="large", n=row, amount=Decimal(f"{row}.50"))
    history.sink.write(batch_of(1, chronicle.take()))
    source.update(0, n=10)
    source.delete(1)
    source.update(2, doc=None)
    source.insert(id=9)
    source.insert(id=10, amount=NAN)
    source.take()
    for _ in range(2):
        history.sink.load(load_of(2, source), source.base())
    chronicle.load()
    assert found(history, source, ENDS) == chronicle.rows()
    source.lsn += 8
    history.sink.load(load_of(3, source), source.base())
    chronicle.load()
    assert found(history, source, ENDS) == chronicle.rows()


def test_load_that_the_table_is_past_goes_back_and_makes_no_version_twice(
    history: DeltaHarness,
) -> None:
    source = Source()
    chronicle = Chronicle(source)
    for row in range(5):
        source.insert(id=row, doc="large", n=row)
    history.sink.write(batch_of(1, chronicle.take()))
    source.rows[4,]["n"] = 40  # not streamed
    source.lsn += 8
    load, base = load_of(3, source), source.base()
    chronicle.load()
    source.update(0, n=10)
    source.delete(1)
    source.insert(id=9)
    source.update(2, id=7, unchanged=["doc"])
    source.update(4, n=41, unchanged=["doc"])
    later = chronicle.take()
    history.sink.write(batch_of(2, later))
    for _ in range(2):
        history.sink.load(load, base)
    history.sink.write(batch_of(4, later))
    assert found(history, source, ENDS) == chronicle.rows()


def test_f102_batch_that_comes_again_makes_no_version(history: DeltaHarness) -> None:
    source = Source()
    chronicle = Chronicle(source)
    source.insert(id=1, n=1)
    first = batch_of(1, chronicle.take())
    history.sink.write(first)
    source.update(1, n=2)
    second = batch_of(2, chronicle.take())
    for batch in (second, second, first):
        history.sink.write(batch)
    assert found(history, source, ENDS) == chronicle.rows()


def test_rows_at_a_time_are_those_of_the_source_then(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None, HISTORY)
    source = Source()
    states = []
    for step in range(6):
        source.insert(id=step, n=step)
        if step % 2:
            source.update(step - 1, n=step * 10)
        if step == 3:
            source.truncate()
        states.append((source.lsn, source.expected()))
        lake.sink.write(batch_of(step, source.take()))
    rows = lake.table(source.relation).to_pyarrow_table().to_pylist()
    for lsn, expected in states:
        then = [
            (*(row[name] for name in source.relation.column_names), row["_text"])
            for row in rows
            if row["_from_lsn"] <= lsn and (row["_to_lsn"] is None or row["_to_lsn"] > lsn)
        ]
        assert sorted(then, key=repr) == expected
    lake.close()


def test_new_column_reaches_versions_that_begin_after_it(history: DeltaHarness) -> None:
    source = Source()
    source.insert(id=1, doc="large", n=1)
    history.sink.write(batch_of(1, source.take()))
    source.add_column("extra")
    source.update(1, extra="e", unchanged=["doc"])
    history.sink.write(batch_of(2, source.take()))
    rows = history.table(source.relation).to_pyarrow_table().sort_by("_from_lsn").to_pylist()
    assert [(row["doc"], row["extra"]) for row in rows] == [("large", None), ("large", "e")]


def test_load_after_a_rename_keeps_the_older_versions(history: DeltaHarness) -> None:
    source = Source()
    source.insert(id=1, doc="a")
    history.sink.write(batch_of(1, source.take()))
    source.rename_column("doc", "body")
    source.update(1, n=1)
    changes = source.take()
    with pytest.raises(SchemaError, match="rename"):
        history.sink.write(batch_of(2, changes))
    history.sink.load(load_of(3, source), source.base())
    source.update(1, n=2, unchanged=["body"])
    history.sink.write(batch_of(4, source.take()))
    rows = history.table(source.relation).to_pyarrow_table().sort_by("_from_lsn").to_pylist()
    assert [(row["doc"], row["body"], row["n"]) for row in rows] == [
        ("a", None, None),
        (None, "a", 1),
        (None, "a", 2),
    ]
    assert history.rows(source.relation) == source.expected()


def test_type_that_older_versions_cannot_have_is_refused_by_a_load(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None, HISTORY)
    source = Source()
    source.insert(id=1)
    lake.sink.write(batch_of(1, source.take()))
    source.retype_column("n", PgType.TEXT)
    with pytest.raises(SchemaError) as caught:
        lake.sink.load(load_of(2, source), source.base())
    assert "moved away" in caught.value.hint and not caught.value.retry
    lake.close()


@pytest.mark.parametrize("name", ["_valid_to", "_deleted_at"])
def test_column_named_like_one_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    options = HISTORY if name == "_valid_to" else SOFT_DELETE
    lake = DeltaHarness(str(tmp_path), None, options)
    with pytest.raises(SchemaError, match=name):
        lake.sink.prepare(relation(columns={"id": PgType.INT8, name: PgType.TEXT}))
    lake.close()


@pytest.mark.slow
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(st.lists(ACTIONS, max_size=12), max_size=5),
    loads=st.sets(st.integers(0, 4)),
    identity=st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]),
)
def test_any_split_into_batches_and_loads_gives_the_same_versions(
    tmp_path: Path,
    batches: list[list[tuple[Any, ...]]],
    loads: set[int],
    identity: ReplicaIdentity,
) -> None:
    source = Source(relation(key=("id", "part"), identity=identity))
    chronicle = Chronicle(source)
    lake = DeltaHarness(str(tmp_path / uuid4().hex), None, HISTORY)
    for sequence, actions in enumerate(batches):
        for action in actions:
            act(source, action)
        batch = batch_of(2 * sequence, chronicle.take())
        lake.sink.prepare(source.relation)
        lake.sink.write(batch)
        lake.sink.write(batch)
        if sequence in loads:
            source.lsn += 8
            chronicle.load()
            lake.sink.load(load_of(2 * sequence + 1, source), source.base())
        assert found(lake, source, ENDS) == chronicle.rows()
    lake.close()


@pytest.mark.slow
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    before=st.lists(ACTIONS, max_size=12),
    since=st.lists(st.lists(ACTIONS, max_size=12), max_size=3),
    identity=st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]),
)
def test_load_that_comes_any_number_of_batches_late_gives_the_same_versions(
    tmp_path: Path,
    before: list[tuple[Any, ...]],
    since: list[list[tuple[Any, ...]]],
    identity: ReplicaIdentity,
) -> None:
    source = Source(relation(key=("id", "part"), identity=identity))
    chronicle = Chronicle(source)
    lake = DeltaHarness(str(tmp_path / uuid4().hex), None, HISTORY)
    for action in before:
        act(source, action)
    lake.sink.prepare(source.relation)
    lake.sink.write(batch_of(0, chronicle.take()))
    source.lsn += 8
    chronicle.load()
    load, base = load_of(10, source), source.base()
    later = []
    for sequence, actions in enumerate(since, start=1):
        for action in actions:
            act(source, action)
        later.append(chronicle.take())
        lake.sink.write(batch_of(sequence, later[-1]))
    lake.sink.load(load, base)
    for sequence, changes in enumerate(later, start=11):
        lake.sink.write(batch_of(sequence, changes))
    assert found(lake, source, ENDS) == chronicle.rows()
    lake.close()


@pytest.mark.slow
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=st.lists(st.lists(ACTIONS, max_size=12), max_size=5))
def test_any_split_into_batches_marks_the_same_deleted_rows(
    tmp_path: Path, batches: list[list[tuple[Any, ...]]]
) -> None:
    source = Source(relation(key=("id", "part")))
    chronicle = Chronicle(source)
    lake = DeltaHarness(str(tmp_path / uuid4().hex), None, SOFT_DELETE)
    lake.sink.prepare(source.relation)
    for sequence, actions in enumerate(batches):
        for action in actions:
            act(source, action)
        batch = batch_of(sequence, chronicle.take())
        lake.sink.write(batch)
        lake.sink.write(batch)
        assert found(lake, source, ["_deleted_at"]) == chronicle.graves()
    lake.close()
