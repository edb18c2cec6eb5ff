"""A table whose shape changes in the source: the target follows where it can, and says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from tailrace.errors import SchemaError
from tailrace.model import PgType, ReplicaIdentity
from tests.sinks.harness import DeltaHarness, Harness
from tests.sinks.source import NAN, Source, batch_of, load_of, relation


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | scale) + 4


def source_of(**columns: tuple[int, int]) -> Source:
    """`id int8` and these columns, which have a type and a typmod."""
    made = Source(
        relation(columns={"id": PgType.INT8, **{n: oid for n, (oid, _) in columns.items()}})
    )
    for name, (oid, typmod) in columns.items():
        made.retype_column(name, oid, typmod)
    return made


def write(form: Harness, sequence: int, source: Source) -> None:
    form.sink.write(batch_of(sequence, source.take()))


WIDENINGS = {
    "int2 to int4": ((PgType.INT2, -1), (PgType.INT4, -1), 1 << 14, 1 << 30),
    "int4 to int8": ((PgType.INT4, -1), (PgType.INT8, -1), 1 << 30, 1 << 60),
    "int2 to int8": ((PgType.INT2, -1), (PgType.INT8, -1), -1, 1 << 60),
    "float4 to float8": ((PgType.FLOAT4, -1), (PgType.FLOAT8, -1), 0.5, 1e300),
    "varchar": ((PgType.VARCHAR, 14), (PgType.VARCHAR, 104), "short", "x" * 90),
    "varchar to text": ((PgType.VARCHAR, 14), (PgType.TEXT, -1), "short", "x" * 900),
    "precision": (
        (PgType.NUMERIC, numeric(6, 2)),
        (PgType.NUMERIC, numeric(20, 2)),
        Decimal("1234.50"),
        Decimal("123456789012345678.90"),
    ),
    "precision and scale": (
        (PgType.NUMERIC, numeric(6, 2)),
        (PgType.NUMERIC, numeric(20, 6)),
        Decimal("1234.50"),
        Decimal("12345678901234.123456"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WIDENINGS)
def test_f058_wider_type_is_taken_over(form: Harness, case: str) -> None:
    old, new, small, large = WIDENINGS[case]
    source = source_of(x=old)
    source.insert(id=1, x=small)
    source.insert(id=2, x=None)
    write(form, 1, source)
    source.retype_column("x", *new)
    source.insert(id=3, x=large)
    write(form, 2, source)
    assert form.rows(source.relation) == source.expected()
    source.update(1, x=large)
    source.update(3, x=small)
    write(form, 3, source)
    assert form.rows(source.relation) == source.expected()


def test_key_may_become_wider(form: Harness) -> None:
    source = Source(relation(columns={"id": PgType.INT4, "doc": PgType.TEXT, "n": PgType.INT4}))
    source.insert(id=1, doc="large", n=1)
    write(form, 1, source)
    source.retype_column("id", PgType.INT8)
    source.update(1, id=1 << 40, unchanged=["doc"])
    source.insert(id=1, doc="other")
    write(form, 2, source)
    assert form.rows(source.relation) == source.expected()


def test_key_is_the_same_in_another_order(form: Harness) -> None:
    source = Source(relation(key=("part", "id")))
    source.insert(id=1, part="a", n=1)
    form.sink.write(batch_of(1, source.take()))
    source.update("a", 1, n=2)
    changes = source.take()
    turned = replace(changes.relation, key=("id", "part"))
    form.sink.write(batch_of(2, replace(changes, relation=turned)))
    assert form.rows(source.relation) == source.expected()


def test_narrower_type_is_kept_wide_and_old_values_are_found(form: Harness) -> None:
    source = source_of(x=(PgType.INT8, -1), doc=(PgType.TEXT, -1))
    source.insert(id=1, x=1, doc="large")
    write(form, 1, source)
    source.retype_column("x", PgType.INT2)
    source.update(1, x=2, unchanged=["doc"])
    source.insert(id=2, x=3)
    write(form, 2, source)
    assert form.rows(source.relation) == source.expected()


def test_new_column_and_wider_type_at_once(form: Harness) -> None:
    source = source_of(x=(PgType.INT4, -1))
    source.insert(id=1, x=1)
    write(form, 1, source)
    source.retype_column("x", PgType.INT8)
    source.add_column("extra", PgType.DATE)
    source.insert(id=2, x=1 << 40)
    write(form, 2, source)
    assert form.rows(source.relation) == source.expected()


def test_f058_dropped_column_stays_and_is_null_from_then_on(form: Harness) -> None:
    source = Source()
    source.insert(id=1, part="old", n=1)
    source.insert(id=2, part="old", n=2)
    write(form, 1, source)
    before = source.relation
    source.drop_column("part")
    source.update(1, n=10)
    source.insert(id=3)
    write(form, 2, source)
    assert form.rows(source.relation) == source.expected()
    parts = {row[0]: row[1] for row in form.rows(before)}
    assert parts == {1: None, 2: "old", 3: None}
    source.add_column("more")
    source.update(2, more="x")
    write(form, 3, source)
    assert form.rows(source.relation) == source.expected()


def test_older_shape_of_a_replay_is_taken_by_a_target_that_has_grown(form: Harness) -> None:
    source = source_of(x=(PgType.INT4, -1))
    source.insert(id=1, x=1)
    write(form, 1, source)
    old = Source(source.relation, {key: dict(row) for key, row in source.rows.items()})
    source.add_column("extra")
    source.retype_column("x", PgType.INT8)
    source.insert(id=2, x=1 << 40, extra="e")
    write(form, 2, source)
    old.update(1, x=7)
    write(form, 3, old)
    source.update(1, x=7)
    source.take()
    assert form.rows(source.relation) == source.expected()


def renamed(source: Source) -> None:
    source.rename_column("doc", "body")


def made_again(source: Source) -> None:
    source.drop_column("doc")
    source.add_column("doc")


def retyped(source: Source) -> None:
    source.retype_column("n", PgType.TEXT)


def more_digits_than_fit(source: Source) -> None:
    source.retype_column("amount", PgType.NUMERIC, numeric(38, 30))


SHAPES = [renamed, made_again, retyped, more_digits_than_fit]


@pytest.mark.parametrize("change", SHAPES)
def test_f058_change_that_would_leave_wrong_rows_stops_and_a_load_goes_on(
    replacing: Harness, change: Callable[[Source], None]
) -> None:
    source = Source()
    source.insert(id=1, doc="a", n=None)
    source.insert(id=2, doc="b", n=None)
    write(replacing, 1, source)
    before, rows = source.relation, source.expected()
    change(source)
    source.insert(id=3)
    changes = source.take()
    for _ in range(2):
        with pytest.raises(SchemaError) as caught:
            replacing.sink.write(batch_of(2, changes))
        # It says what to do, and passes by itself once that is done.
        assert "tailrace snapshot public.orders" in str(caught.value) and caught.value.retry
    assert replacing.rows(before) == rows
    replacing.sink.load(load_of(3, source), source.base())
    assert replacing.rows(source.relation) == source.expected()
    source.update(1, id=9)
    write(replacing, 4, source)
    assert replacing.rows(source.relation) == source.expected()


def test_dropped_column_that_comes_back_stops(form: Harness) -> None:
    source = Source()
    source.insert(id=1, n=1)
    write(form, 1, source)
    source.drop_column("n")
    source.insert(id=2)
    write(form, 2, source)
    source.add_column("n", PgType.INT4)
    source.insert(id=3)
    with pytest.raises(SchemaError, match="dropped and made again"):
        write(form, 3, source)


def test_f058_dropped_and_added_is_no_rename(form: Harness) -> None:
    source = Source()
    source.insert(id=1, n=1)
    write(form, 1, source)
    source.drop_column("n")
    source.add_column("other", PgType.INT4)
    source.insert(id=2)
    write(form, 2, source)
    assert form.rows(source.relation) == source.expected()


def test_evolution_is_a_commit_of_its_own_and_not_repeated(lake: DeltaHarness) -> None:
    source = source_of(x=(PgType.INT4, -1))
    source.insert(id=1, x=1)
    write(lake, 1, source)
    source.retype_column("x", PgType.INT8)
    source.insert(id=2, x=1)
    write(lake, 2, source)
    assert lake.table(source.relation).version() == 3
    source.insert(id=3, x=1)
    write(lake, 3, source)
    assert lake.table(source.relation).version() == 4


def test_f058_whole_old_row_has_its_own_older_shape(form: Harness) -> None:
    source = Source(relation(identity=ReplicaIdentity.FULL))
    source.insert(id=1, doc="large", n=1)
    write(form, 1, source)
    source.add_column("extra")
    source.update(1, extra="e", unchanged=["doc"])
    source.retype_column("n", PgType.INT8)
    write(form, 2, source)
    source.update(1, n=1 << 40, unchanged=["doc"])
    write(form, 3, source)
    assert form.rows(source.relation) == source.expected()


def test_texts_of_the_old_row_stay_out_of_the_target(form: Harness) -> None:
    source = Source(relation(identity=ReplicaIdentity.FULL))
    source.insert(id=1, amount=NAN, n=1)
    write(form, 1, source)
    source.update(1, amount=Decimal("1.50"))
    changes = source.take()
    texts = pa.array([[("_before.amount", NAN)]], type=changes.rows.schema.field("_text").type)
    at = changes.rows.column_names.index("_text")
    rows = changes.rows.set_column(at, changes.rows.schema.field(at), texts)
    form.sink.write(batch_of(2, replace(changes, rows=rows)))
    assert form.rows(source.relation) == source.expected()
