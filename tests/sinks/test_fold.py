"""One outcome for each key, whatever happened to it in the batch."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import SchemaError
from tailrace.model import PgType, ReplicaIdentity
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.memory import MemorySink
from tailrace.sinks.shape import row_schema
from tailrace.spark.selection import Selection
from tests.sinks.source import NAN, Source, batch_of, relation


def rows_of(table: pa.Table, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.select(list(names)).to_pylist()]


def fold_of(source: Source) -> Fold:
    return fold(source.take())


def test_last_change_of_a_key_wins() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.update(1, n=2)
    source.update(1, n=3)
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id", "n") == [(1, 3)]
    assert not folded.truncated and not folded.deletes.num_rows and not folded.kept


def test_insert_then_delete_leaves_a_delete() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.delete(1)
    folded = fold_of(source)
    assert not folded.upserts.num_rows
    assert rows_of(folded.deletes, "id") == [(1,)]


def test_delete_then_insert_leaves_an_upsert() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.take()
    source.delete(1)
    source.insert(id=1, n=2)
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id", "n") == [(1, 2)]
    assert not folded.deletes.num_rows


def test_f051_key_change_deletes_the_old_key_and_upserts_the_new() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.take()
    source.update(1, id=2, n=5)
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id", "n") == [(2, 5)]
    assert rows_of(folded.deletes, "id") == [(1,)]


def test_f051_insert_and_key_change_in_one_batch_keep_the_large_value() -> None:
    source = Source()
    source.insert(id=1, doc="large")
    source.update(1, id=2, unchanged=["doc"])
    source.update(2, id=3, unchanged=["doc"])
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id", "doc") == [(3, "large")]
    assert sorted(rows_of(folded.deletes, "id")) == [(1,), (2,)]
    assert not folded.kept


def test_two_rows_that_swap_keys_keep_their_values() -> None:
    source = Source()
    source.insert(id=1, doc="one")
    source.insert(id=2, doc="two")
    source.update(1, id=0, unchanged=["doc"])
    source.update(2, id=1, unchanged=["doc"])
    source.update(0, id=2, unchanged=["doc"])
    folded = fold_of(source)
    assert sorted(rows_of(folded.upserts, "id", "doc")) == [(1, "two"), (2, "one")]
    assert rows_of(folded.deletes, "id") == [(0,)]


def test_f050_unchanged_value_is_filled_from_the_batch() -> None:
    source = Source()
    source.insert(id=1, doc="large", n=1)
    source.insert(id=2, doc="other", n=1)
    for n in range(40):
        source.update(1, n=n, unchanged=["doc"])
    folded = fold_of(source)
    assert sorted(rows_of(folded.upserts, "id", "doc", "n")) == [(1, "large", 39), (2, "other", 1)]
    assert not folded.kept


def test_f049_unchanged_value_that_only_the_target_has_is_marked() -> None:
    source = Source()
    source.insert(id=1, doc="large")
    source.insert(id=2, doc="other")
    source.take()
    source.update(2, n=1, doc="new")
    source.update(1, n=1, unchanged=["doc"])
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id") == [(2,), (1,)]
    assert folded.kept["doc"].tolist() == [False, True]
    assert folded.keeping.tolist() == [1]
    assert rows_of(folded.origins, "id")[1] == (1,)


def test_unresolved_value_of_a_moved_row_names_the_key_it_stands_under() -> None:
    source = Source()
    source.insert(id=1, doc="large")
    source.take()
    source.update(1, n=1, unchanged=["doc"])
    source.update(1, id=2, unchanged=["doc"])
    source.update(2, id=3, unchanged=["doc"])
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id") == [(3,)]
    assert rows_of(folded.origins, "id") == [(1,)]
    assert folded.kept["doc"].tolist() == [True]


def test_whole_old_row_fills_what_is_unchanged() -> None:
    source = Source(relation(identity=ReplicaIdentity.FULL))
    source.insert(id=1, doc="large")
    source.take()
    source.update(1, n=1, unchanged=["doc"])
    folded = fold_of(source)
    assert rows_of(folded.upserts, "id", "doc", "n") == [(1, "large", 1)]
    assert not folded.kept


def test_text_of_an_unchanged_value_comes_along() -> None:
    source = Source()
    source.insert(id=1, amount=NAN, doc="a")
    source.update(1, doc="b", unchanged=["amount"])
    assert rows_of(fold_of(source).upserts, "amount", "_text") == [(None, [("amount", NAN)])]


def test_text_goes_when_the_value_is_replaced() -> None:
    source = Source()
    source.insert(id=1, amount=NAN)
    source.update(1, amount=Decimal("1.50"))
    assert rows_of(fold_of(source).upserts, "amount", "_text") == [(Decimal("1.50"), None)]


def test_f054_truncate_voids_what_came_before_it() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.truncate()
    source.insert(id=2, n=2)
    source.truncate()
    source.insert(id=3, n=3)
    folded = fold_of(source)
    assert folded.truncated
    assert rows_of(folded.upserts, "id", "n") == [(3, 3)]
    assert not folded.deletes.num_rows


def test_f054_truncate_alone_empties_the_target() -> None:
    source = Source()
    source.insert(id=1)
    source.truncate()
    folded = fold_of(source)
    assert folded.truncated and not folded.upserts.num_rows


def test_no_changes_fold_to_nothing() -> None:
    folded = fold_of(Source())
    assert not (folded.truncated or folded.upserts.num_rows or folded.deletes.num_rows)


@pytest.mark.parametrize(
    ("oid", "one", "two"),
    [
        (PgType.BOOL, True, False),
        (PgType.INT2, 1, 2),
        (PgType.FLOAT8, 0.5, float("inf")),
        (PgType.NUMERIC, Decimal("1.00"), Decimal("2.00")),
        (PgType.BYTEA, b"\x00", b""),
        (PgType.DATE, 0, 1),
        (PgType.TIMESTAMP, 0, 1),
        (PgType.TIMESTAMPTZ, 0, 1),
        (PgType.UUID, "a", "b"),
    ],
)
def test_keys_of_every_type_are_told_apart(oid: int, one: object, two: object) -> None:
    shape = relation(key=("part", "k"), columns={"k": oid, "part": PgType.TEXT, "n": PgType.INT4})
    source = Source(shape)
    for n, key in enumerate((one, two)):
        source.insert(part="p", k=key, n=n)
        source.insert(part="q", k=key, n=n + 10)
        source.update("p", key, n=n + 20)
    source.delete("q", one)
    folded = fold_of(source)
    assert sorted(rows_of(folded.upserts, "part", "n")) == [("p", 20), ("p", 21), ("q", 11)]
    assert rows_of(folded.deletes, "part") == [("q",)]


def test_zero_and_minus_zero_are_one_key() -> None:
    source = Source(relation(key=("k",), columns={"k": PgType.FLOAT8, "n": PgType.INT4}))
    source.insert(k=0.0, n=1)
    source.update(0.0, k=-0.0, n=2)
    folded = fold_of(source)
    assert rows_of(folded.upserts, "n") == [(2,)] and not folded.deletes.num_rows


def test_key_that_its_column_cannot_hold_is_refused() -> None:
    source = Source(relation(key=("amount",)))
    source.insert(amount=NAN)
    with pytest.raises(SchemaError, match="key column amount"):
        fold_of(source)


def test_table_without_a_key_is_refused() -> None:
    with pytest.raises(SchemaError, match="no key"):
        fold_of(Source(relation(key=())))


def test_f052_rows_that_only_their_whole_identifies_need_a_key_of_the_stream() -> None:
    columns = {"id": PgType.INT8, "n": PgType.INT4}
    whole = relation(key=("id", "n"), columns=columns, identity=ReplicaIdentity.FULL)
    loose = replace(whole, is_keyless=True)
    with pytest.raises(SchemaError, match="no key"):
        row_schema(loose)
    by_id = Selection.of(columns=None, where=None, key=("id",))
    assert row_schema(by_id.narrow(loose)).names[:2] == ["id", "n"]
    assert row_schema(whole).names[:2] == ["id", "n"]


def test_column_names_with_dots_are_not_paths() -> None:
    names = {"a.b": PgType.INT8, ".c": PgType.TEXT, "n": PgType.INT4}
    source = Source(relation(key=("a.b",), columns=names))
    source.insert(**{"a.b": 1, ".c": "large"})
    source.update(1, unchanged=[".c"], **{"a.b": 2})
    folded = fold_of(source)
    assert rows_of(folded.upserts, "a.b", ".c") == [(2, "large")]
    assert rows_of(folded.deletes, "a.b") == [(1,)]


KEYS = st.tuples(st.integers(0, 3), st.sampled_from(["x", "y"]))
DOCS = st.sampled_from(["one", "two", "three"])
AMOUNTS = st.sampled_from([NAN, Decimal("1.50"), None])
ACTIONS = st.one_of(
    st.tuples(st.just("insert"), KEYS, DOCS, AMOUNTS),
    st.tuples(st.just("update"), KEYS, st.none() | KEYS, st.none() | DOCS, st.booleans()),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("truncate")),
)


def act(source: Source, action: tuple[Any, ...]) -> None:
    """Do it if the table's state allows it; an update without a new doc does not send the doc."""
    match action:
        case ("insert", key, doc, amount) if key not in source.rows:
            source.insert(id=key[0], part=key[1], doc=doc, amount=amount)
        case ("update", key, to, doc, resend) if key in source.rows:
            target = key if to is None or to in source.rows else to
            values = {"id": target[0], "part": target[1], "n": len(source.pending)}
            unchanged = [] if resend else ["amount"]
            if doc is None:
                unchanged.append("doc")
            else:
                values["doc"] = doc
            # NULL is always sent.
            unchanged = [name for name in unchanged if source.rows[key][name] is not None]
            source.update(*key, unchanged=unchanged, **values)
        case ("delete", key) if key in source.rows:
            source.delete(*key)
        case ("truncate",):
            source.truncate()


@pytest.mark.slow
@settings(deadline=None)
@given(
    batches=st.lists(st.lists(ACTIONS, max_size=12), max_size=5),
    identity=st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]),
)
def test_folding_any_split_into_batches_gives_the_rows_of_the_source(
    batches: list[list[tuple[Any, ...]]], identity: ReplicaIdentity
) -> None:
    source = Source(relation(key=("id", "part"), identity=identity))
    sink = MemorySink()
    sink.prepare(source.relation)
    for sequence, actions in enumerate(batches):
        for action in actions:
            act(source, action)
        sink.write(batch_of(sequence, source.take()))
        found = sink.table("public.orders").to_pylist()
        assert sorted((tuple(row.values()) for row in found), key=repr) == source.expected()


def test_no_python_runs_per_row() -> None:
    count, keys = 200_000, 40_000
    source = Source()
    source.insert(id=0, doc="large", n=0)
    one = source.take().rows
    rng = np.random.default_rng(7)
    many = one.take(np.zeros(count, dtype=np.int64))
    many = many.set_column(0, "id", pa.array(rng.integers(0, keys, count)))
    many = many.set_column(4, many.schema.field("n"), pa.array(np.arange(count, dtype=np.int32)))
    folded = fold(type(source.take())(source.relation, many))
    ids, ns = (folded.upserts.column(name).to_numpy() for name in ("id", "n"))
    last = dict(zip(many.column("id").to_pylist(), many.column("n").to_pylist(), strict=True))
    assert dict(zip(ids.tolist(), ns.tolist(), strict=True)) == last
