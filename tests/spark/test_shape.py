"""A table that changes its shape: a typed read is exact, or ends with one line and goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError, SchemaError
from tailrace.model import Column, Offset, PgType, Relation
from tailrace.spark.options import ReadOptions
from tailrace.spark.place import Place
from tailrace.spark.shape import newest_relation, spark_schema
from tailrace.spark.table_stream import TableStreamReader
from tailrace.storage import MemoryStore
from tests.spark.made_log import ITEMS, ORDERS, MadeLog, Table, merge_all
from tests.spark.reading import Reads, Rows, in_order, told


@pytest.fixture
def reads(spark: SparkSession, log: MadeLog, tmp_path: Path) -> Reads:
    return Reads(spark, log, tmp_path)


def _run(reads: Reads, taken: Rows, **options: object) -> None:
    reads.start(
        reads.stream(**options), lambda rows: taken.extend(in_order(rows))
    ).awaitTermination()


def _with(name: str, relation: Relation = ORDERS, *, type_oid: int = PgType.TEXT) -> Relation:
    return replace(relation, columns=(*relation.columns, Column(name, type_oid, -1, False)))


def _retyped(type_oid: int) -> Relation:
    note = Column("note", type_oid, -1, False)
    return replace(ITEMS, columns=(ITEMS.columns[0], note))


def test_stream_stops_at_a_new_shape_and_goes_on_when_started_again(
    reads: Reads, log: MadeLog
) -> None:
    table = Table()
    log.insert(table, 1, 2)
    taken: Rows = []
    _run(reads, taken)
    log.insert(table, 3)
    stale = reads.stream()
    table.add_column("added")
    first = log.commit(table, table.insert(4, "x", 1, "new"))

    with pytest.raises(PySparkException) as caught:
        reads.start(stale, lambda rows: taken.extend(in_order(rows))).awaitTermination()

    message = f"public.orders has a new shape from {first.commit_lsn}:0 on"
    assert told(caught.value).startswith(message)
    assert [row["id"] for row in taken] == [1, 2, 3], "what has the old shape came before"
    _run(reads, taken)
    assert [row["id"] for row in taken] == [1, 2, 3, 4]
    assert taken[-1]["added"] == "new"


def test_older_rows_are_read_under_the_newest_shape(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1)
    table.alter(_with("second"))
    log.commit(table, table.insert(2, "x", 1, "b"))
    table.alter(_with("third", replace(ORDERS, columns=ORDERS.columns[:2])))
    log.commit(table, table.insert(3, "x", "c"))
    rows = [(1, None), (2, None), (3, "c")]
    taken: Rows = []
    _run(reads, taken)
    for found in (reads.rows(), taken):
        assert [(row["id"], row["third"]) for row in found] == rows
        assert not {"second", "amount"} & set(found[0])


def test_stream_under_the_newest_shape_does_not_stop_at_older_ones(
    reads: Reads, log: MadeLog
) -> None:
    table = Table()
    log.insert(table, 1)
    table.add_column("added")
    log.commit(table, table.insert(2, "x", 1, None))
    frame = reads.stream(maxChangesPerTrigger=1)
    table.add_column("again")
    log.commit(table, table.insert(3, "x", 1, None, None))
    taken: list[pa.Table] = []
    with pytest.raises(PySparkException) as caught:
        reads.start(frame, taken.append).awaitTermination()
    assert told(caught.value).startswith("public.orders has a new shape")
    assert [row["id"] for rows in taken for row in rows.to_pylist()] == [1, 2]


def test_asked_columns_decide_what_a_new_shape_is(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1)
    frame = reads.stream(columns="id,note")
    table.add_column("added")
    log.commit(table, table.insert(2, "x", 1, None))
    taken: list[pa.Table] = []
    reads.start(frame, taken.append).awaitTermination()
    assert [row["id"] for rows in taken for row in rows.to_pylist()] == [1, 2]


def test_changed_type_is_read_exactly_or_apart(reads: Reads, log: MadeLog) -> None:
    table = Table(_retyped(PgType.INT4))
    end = log.commit(table, table.insert(1, 10))
    table.alter(_retyped(PgType.INT8))
    log.commit(table, table.insert(2, 1 << 40))
    found = [row["note"] for row in reads.rows(table="public.items")]
    assert found == [10, 1 << 40]
    table.alter(_retyped(PgType.DATE))
    log.commit(table, table.insert(3, "2026-01-15"))
    with pytest.raises(PySparkException) as caught:
        reads.rows(table="public.items")
    assert told(caught.value).startswith("public.items.note was int32 and is date32")
    rows = reads.rows(table="public.items", endingOffset=end)
    assert [row["note"] for row in rows] == [10], "the shape is that of the range"


def _newest(log: MadeLog, **options: str) -> Relation:
    told = {"log": log.store.url, "table": "public.orders", **options}
    return newest_relation(ReadOptions.of(told))


def test_shape_of_a_base_is_newer_than_those_of_the_changes_before_it() -> None:
    """They may stand in the same segment as what follows the base, and be all that it has."""
    log, table, other = MadeLog(MemoryStore()), Table(), Table(ITEMS)
    log.insert(table, 1)
    table.add_column("added")
    base = log.base_of(table)
    log.insert(other, 1)
    merge_all(log)
    options = ReadOptions.of({"log": log.store.url, "table": "public.orders"})
    stream = TableStreamReader(options, spark_schema(newest_relation(options), None))
    after, upto = Place(Offset.whole(base.position)), Place(log.end)
    assert stream.partitions(after.to_dict(), upto.to_dict())
    log.commit(table, table.insert(2, "x", 1, "new"))
    table.add_column("later")
    log.commit(table, table.insert(3, "x", 1, "new", "newer"))
    with pytest.raises(SchemaError, match="has a new shape"):
        stream.partitions(upto.to_dict(), Place(log.end).to_dict())


def test_newest_shape_is_found_at_the_end_of_the_range() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    first = log.insert(table, 1)
    table.add_column("added")
    second = log.commit(table, table.insert(2, "x", 1, None))
    log.insert(Table(ITEMS), 1)
    assert _newest(log).column_names[-1] == "added"
    assert _newest(log, endingOffset=str(second)).column_names[-1] == "added"
    assert _newest(log, endingOffset=str(first)).column_names[-1] == "amount"
    with pytest.raises(ConfigError, match=r"a change of public\.orders up to 0/FFF"):
        _newest(log, endingOffset="0/FFF")


def test_columns_that_cannot_be_told_apart_are_refused() -> None:
    for clash in (_with("NOTE"), _with("_op")):
        with pytest.raises(SchemaError, match="of the same name"):
            spark_schema(clash, None)
        assert spark_schema(clash, ("id", "amount")).fieldNames()[:3] == ["id", "amount", "_op"]
