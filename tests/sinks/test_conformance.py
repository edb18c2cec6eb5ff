"""What every sink that keeps rows promises, whatever it is made of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from threading import Barrier

import pytest

from tailrace.errors import SchemaError, SinkError
from tailrace.model import PgType, Relation
from tests.sinks.harness import Harness
from tests.sinks.source import COLUMNS, NAN, Source, batch_of, relation


def deliver(harness: Harness, sequence: int, source: Source) -> None:
    known = harness.sink.committed("lake", [source.relation])
    harness.sink.write(batch_of(sequence, source.take(), known=list(known)))


def filled(harness: Harness) -> Source:
    """Three rows, delivered as sequence 1."""
    source = Source()
    harness.sink.prepare(source.relation)
    source.insert(id=1, part="a", doc="large one", amount=Decimal("1.50"), n=1)
    source.insert(id=2, part="b", doc="large two", amount=NAN, n=2)
    source.insert(id=3, part="c", doc=None, amount=None, n=3)
    deliver(harness, 1, source)
    return source


def test_prepared_table_exists_without_rows(harness: Harness) -> None:
    harness.sink.prepare(relation())
    harness.sink.prepare(relation())
    assert harness.rows(relation()) == []
    assert harness.sink.committed("lake", [relation()]) == {}
    assert harness.sink.occupied([relation()]) == set()
    filled(harness)
    assert harness.sink.occupied([relation()]) == {"public.orders"}


def test_rows_follow_the_source_from_batch_to_batch(harness: Harness) -> None:
    source = filled(harness)
    assert harness.rows(source.relation) == source.expected()
    source.update(1, n=10)
    source.delete(2)
    source.insert(id=4, part="d", n=4)
    source.delete(3)
    source.insert(id=3, part="c again", n=30)
    deliver(harness, 2, source)
    assert harness.rows(source.relation) == source.expected()
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 2}


def test_f049_unchanged_value_keeps_what_the_target_has(harness: Harness) -> None:
    source = filled(harness)
    source.update(1, n=10, unchanged=["doc"])
    source.update(2, n=20, unchanged=["doc", "amount"])
    source.update(3, n=30, doc="now large")
    deliver(harness, 2, source)
    assert harness.rows(source.relation) == source.expected()


def test_f050_insert_and_partial_update_in_one_batch_onto_an_empty_target(
    harness: Harness,
) -> None:
    source = Source()
    harness.sink.prepare(source.relation)
    source.insert(id=1, doc="large", amount=NAN)
    source.update(1, n=1, unchanged=["doc", "amount"])
    deliver(harness, 1, source)
    assert harness.rows(source.relation) == source.expected()


def test_f051_key_change_takes_the_large_value_along(harness: Harness) -> None:
    source = filled(harness)
    source.update(1, id=7, unchanged=["doc"])
    source.update(2, id=1, n=20, unchanged=["doc", "amount"])
    source.insert(id=2, part="new", doc="another")
    deliver(harness, 2, source)
    assert harness.rows(source.relation) == source.expected()


def test_f054_truncate_empties_the_target_before_later_rows(harness: Harness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    source.truncate()
    source.insert(id=2, part="after", n=2)
    deliver(harness, 2, source)
    assert harness.rows(source.relation) == source.expected()
    source.truncate()
    deliver(harness, 3, source)
    assert harness.rows(source.relation) == []


def test_f102_batch_that_comes_again_changes_nothing(harness: Harness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    second = batch_of(2, source.take())
    harness.sink.write(second)
    source.update(1, n=11)
    deliver(harness, 3, source)
    # Not only the last one: a writer that comes late has an older one.
    harness.sink.write(second)
    assert harness.rows(source.relation) == source.expected()
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 3}


def test_batch_that_touches_no_row_is_recorded(harness: Harness) -> None:
    source = filled(harness)
    source.insert(id=9)
    source.delete(9)
    deliver(harness, 2, source)
    assert harness.rows(source.relation) == source.expected()
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 2}


def test_table_without_changes_is_left_alone(harness: Harness) -> None:
    source = filled(harness)
    deliver(harness, 2, source)
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 1}


def test_streams_do_not_take_each_others_record_for_theirs(harness: Harness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    harness.sink.write(batch_of(1, source.take(), stream="other"))
    assert harness.rows(source.relation) == source.expected()
    assert harness.sink.committed("other", [source.relation]) == {"public.orders": 1}


def test_f082_two_writers_of_one_batch_apply_it_once(harness: Harness) -> None:
    source = filled(harness)
    source.update(1, n=10)
    source.insert(id=4, n=4)
    source.delete(3)
    batch = batch_of(2, source.take())
    rivals = harness.rivals(Barrier(2, timeout=60))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(rival.write, batch) for rival in rivals]:
            done.result()
    assert harness.rows(source.relation) == source.expected()
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 2}


def test_new_column_is_added_with_the_batch_that_has_it(harness: Harness) -> None:
    source = filled(harness)
    source.add_column("at", PgType.TIMESTAMP)
    source.update(1, at=None, n=10)
    source.insert(id=4)
    deliver(harness, 2, source)
    assert harness.rows(source.relation) == source.expected()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(relation(columns={**COLUMNS, "n": PgType.TEXT}), id="retyped"),
        pytest.param(relation(key=("id", "part")), id="other key"),
        pytest.param(relation(key=()), id="no key"),
        pytest.param(relation(columns={"id": 20, "ID": 20}), id="equal but for case"),
        pytest.param(relation(columns={"id": 20, "_text": 25}), id="ours"),
    ],
)
def test_shape_that_does_not_fit_is_refused_and_nothing_written(
    harness: Harness, changed: Relation
) -> None:
    source = filled(harness)
    fresh = Source(changed)
    if "_text" not in changed.column_names and changed.key:
        fresh.insert(id=5, part="x")
        with pytest.raises(SchemaError) as caught:
            harness.sink.write(batch_of(2, fresh.take()))
        assert caught.value.hint
    with pytest.raises(SchemaError):
        harness.sink.prepare(changed)
    assert harness.rows(source.relation) == source.expected()
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 1}


@pytest.mark.parametrize("prepared", [False, True])
def test_target_that_vanished_is_not_begun_anew(harness: Harness, prepared: bool) -> None:
    source = filled(harness)
    harness.drop(source.relation)
    if prepared:
        harness.sink.prepare(source.relation)
    source.update(1, n=10)
    with pytest.raises(SinkError) as caught:
        harness.sink.write(batch_of(2, source.take(), known=["public.orders"]))
    assert caught.value.hint and not caught.value.retry
    assert harness.sink.committed("lake", [source.relation]) == {}


def test_row_that_the_target_lacks_is_an_error_if_a_value_of_it_is_unchanged(
    harness: Harness,
) -> None:
    source = filled(harness)
    source.insert(id=4, doc="large")
    source.take()
    source.update(4, n=4, unchanged=["doc"])
    with pytest.raises(SinkError, match="lacks a row"):
        harness.sink.write(batch_of(2, source.take()))
    assert harness.sink.committed("lake", [source.relation]) == {"public.orders": 1}


def test_tables_of_a_batch_do_not_wait_for_one_that_fails(harness: Harness) -> None:
    sources = [Source(relation(f"table {n}")) for n in range(3)]
    for source in sources:
        source.insert(id=1, n=1)
    bad = Source(replace(relation("bad"), key=()))
    bad.insert(id=1)
    with pytest.raises(SchemaError, match=r"public\.bad"):
        harness.sink.write(batch_of(1, bad.take(), *[source.take() for source in sources]))
    for source in sources:
        assert harness.rows(source.relation) == source.expected()


def test_f069_odd_names_of_tables_and_columns(harness: Harness) -> None:
    names = ["a b", "a.b", "select", 'a"b', "a`b", "a'b", "ü", "a,b=;{}()\n\t", "a\\b", "%2F"]
    shape = relation(
        'we"ird/../`tab le`.ü',
        schema="..",
        key=names[:2],
        columns={**dict.fromkeys(names, PgType.TEXT), "Z": PgType.TEXT},
    )
    source = Source(shape)
    harness.sink.prepare(shape)
    for row in range(3):
        source.insert(**{name: f"{row}\\'`\"{name}" for name in shape.column_names})
    deliver(harness, 1, source)
    first, *_ = source.rows
    source.update(*first, Z="z", unchanged=["ü", "a`b"])
    _, second, *_ = source.rows
    source.delete(*second)
    source.insert(**{name: f"new {name}" for name in shape.column_names})
    deliver(harness, 2, source)
    source.add_column("one more")
    source.truncate()
    source.insert(**{name: f"last {name}" for name in source.relation.column_names})
    deliver(harness, 3, source)
    assert harness.rows(source.relation) == source.expected()
