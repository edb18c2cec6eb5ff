"""A whole table handed to a sink: it replaces what was there, all at once, and once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from threading import Barrier

import pyarrow as pa
import pytest

from tailrace.errors import SchemaError, SinkError, StoreError
from tailrace.model import PgType
from tests.sinks.harness import Harness
from tests.sinks.source import NAN, Source, batch_of, load_of, relation


def orders() -> Source:
    source = Source()
    source.insert(id=1, part="a", doc="large one", amount=Decimal("1.50"), n=1)
    source.insert(id=2, part="b", doc="large two", amount=NAN, n=2)
    source.insert(id=3, part="c", n=3)
    source.take()
    return source


def loaded(form: Harness) -> Source:
    """Three rows, loaded as sequence 1."""
    source = orders()
    form.sink.load(load_of(1, source), source.base())
    return source


@pytest.mark.parametrize("prepared", [False, True])
def test_load_fills_a_new_target_and_is_recorded(form: Harness, prepared: bool) -> None:
    if prepared:
        form.sink.prepare(relation())
    source = loaded(form)
    assert form.rows(source.relation) == source.expected()
    assert form.sink.committed("lake", [source.relation]) == {"public.orders": 1}


def test_empty_load_makes_an_empty_target(form: Harness) -> None:
    source = Source()
    form.sink.load(load_of(1, source), [])
    assert form.rows(source.relation) == []
    assert form.sink.committed("lake", [source.relation]) == {"public.orders": 1}


def test_f022_load_leaves_no_row_of_the_time_before(form: Harness) -> None:
    source = loaded(form)
    source.delete(1)
    source.update(2, id=7)
    source.insert(id=8, part="new")
    form.sink.load(load_of(2, source), source.base())
    assert form.rows(source.relation) == source.expected()
    form.sink.load(load_of(3, source), [])
    assert form.rows(source.relation) == []


def test_f049_changes_after_a_load_find_the_values_that_were_not_sent(harness: Harness) -> None:
    source = loaded(harness)
    source.update(1, n=10, unchanged=["doc"])
    source.update(2, id=9, unchanged=["doc", "amount"])
    harness.sink.write(batch_of(2, source.take(), known=["public.orders"]))
    assert harness.rows(source.relation) == source.expected()


def test_f102_load_that_comes_again_or_late_changes_nothing(form: Harness) -> None:
    source = loaded(form)
    first = source.base()
    source.update(1, n=10)
    form.sink.write(batch_of(2, source.take()))
    for sequence in (1, 2):
        form.sink.load(load_of(sequence, source), first)
        assert form.rows(source.relation) == source.expected()
    assert form.sink.committed("lake", [source.relation]) == {"public.orders": 2}


def test_load_that_fails_on_the_way_leaves_the_target_as_it_was(form: Harness) -> None:
    source = loaded(form)

    def broken() -> Iterator[pa.Table]:
        yield from Source(source.relation).base()
        raise StoreError("the base cannot be read")

    with pytest.raises(StoreError, match="the base cannot be read"):
        form.sink.load(load_of(2, source), broken())
    assert form.rows(source.relation) == source.expected()
    assert form.sink.committed("lake", [source.relation]) == {"public.orders": 1}


def test_load_replaces_the_shape_as_well(replacing: Harness) -> None:
    loaded(replacing)
    shape = relation(
        key=("part",),
        columns={"part": PgType.TEXT, "n": PgType.TEXT, "new": PgType.DATE, "id": PgType.INT4},
    )
    source = Source(shape)
    source.insert(part="x", n="one", id=1)
    source.insert(part="y", n="two", id=2)
    source.take()
    replacing.sink.load(load_of(2, source), source.base())
    assert replacing.rows(source.relation) == source.expected()
    source.update("x", part="z")
    replacing.sink.write(batch_of(3, source.take(), known=["public.orders"]))
    assert replacing.rows(source.relation) == source.expected()


def test_key_that_its_column_cannot_hold_is_refused(form: Harness) -> None:
    source = Source(relation(key=("amount",)))
    source.insert(amount=NAN)
    with pytest.raises(SchemaError, match="key column amount"):
        form.sink.load(load_of(1, source), source.base())
    assert form.sink.committed("lake", [source.relation]) == {}


def test_target_that_vanished_is_made_anew_by_a_load(form: Harness) -> None:
    source = loaded(form)
    form.drop(source.relation)
    source.update(1, n=10)
    with pytest.raises(SinkError):
        form.sink.write(batch_of(2, source.take(), known=["public.orders"]))
    form.sink.load(load_of(3, source), source.base())
    assert form.rows(source.relation) == source.expected()


def test_records_of_other_streams_stay(form: Harness) -> None:
    source = loaded(form)
    form.sink.load(load_of(1, source, stream="other"), source.base())
    for stream in ("lake", "other"):
        assert form.sink.committed(stream, [source.relation]) == {"public.orders": 1}


def test_f082_two_writers_of_one_load_apply_it_once(form: Harness) -> None:
    source = loaded(form)
    source.update(1, n=10)
    barrier = Barrier(2, timeout=120)

    def together() -> Iterator[pa.Table]:
        if not form.locks:
            barrier.wait()
        yield from source.base()

    def load() -> None:
        if form.locks:
            barrier.wait()
        form.sink.load(load_of(2, source), together())

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(load) for _ in range(2)]:
            done.result()
    assert form.rows(source.relation) == source.expected()
    assert form.sink.committed("lake", [source.relation]) == {"public.orders": 2}


def test_columns_of_a_load_may_come_in_another_order(form: Harness) -> None:
    source = loaded(form)
    columns = source.relation.columns
    turned = replace(source.relation, columns=(*columns[2:], *columns[:2]))
    other = Source(turned, {key: dict(row) for key, row in source.rows.items()})
    form.sink.load(load_of(2, other), other.base())
    assert form.rows(source.relation) == source.expected()
