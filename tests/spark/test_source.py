"""The `tailrace` format shows exactly what the log holds, in batch and as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.log.retention import RetentionPolicy, retain
from tailrace.model import Offset
from tailrace.spark.options import ReadOptions
from tailrace.spark.table import TableReader
from tests.decode import wire
from tests.spark.made_log import ITEMS, LATER_S, ORDERS, MadeLog, Table, merge_all
from tests.spark.reading import Reads, Rows, decoded, in_order, told


@pytest.fixture
def reads(spark: SparkSession, log: MadeLog, tmp_path: Path) -> Reads:
    return Reads(spark, log, tmp_path)


def _busy(log: MadeLog) -> None:
    """Every kind of change, beside those of another table."""
    orders, items = Table(), Table(ITEMS)
    log.insert(orders, 1, 3)
    log.insert(items, 1, 2)
    log.commit(
        orders,
        orders.update(1, 1, "changed", Decimal("1.50")),
        wire.update(ORDERS.oid, ["2", wire.UNSENT, "NaN"]),
        orders.update(3, 30, "moved", None),
    )
    log.commit(orders, orders.delete(30), orders.insert(4, None, Decimal("4.00")))
    log.commit(items, wire.truncate(ITEMS.oid, ORDERS.oid))


def _flat(batches: Sequence[Rows]) -> Rows:
    return list(chain.from_iterable(batches))


def _ids(rows: Rows) -> list[object]:
    return [row["id"] for row in rows]


def test_batch_and_stream_show_what_is_decoded(reads: Reads, log: MadeLog) -> None:
    _busy(log)
    expected = decoded(log, "public.orders", log.begin, log.end)
    assert [row["_op"] for row in expected][-3:] == ["delete", "insert", "truncate"]
    assert reads.rows() == expected
    assert _flat(reads.batches()) == expected


def test_columns_are_typed(reads: Reads, log: MadeLog) -> None:
    _busy(log)
    expected = {
        "id": "bigint",
        "note": "string",
        "amount": "decimal(12,2)",
        "_op": "string",
        "_commit_lsn": "bigint",
        "_ordinal": "bigint",
        "_commit_ts": "timestamp",
        "_xid": "bigint",
        "_origin": "string",
        "_unchanged": "array<string>",
        "_before": "struct<id:bigint,note:string,amount:decimal(12,2)>",
        "_text": "map<string,string>",
    }
    assert dict(reads.batch().dtypes) == dict(reads.stream().dtypes) == expected


def test_only_asked_columns_are_read(reads: Reads, log: MadeLog) -> None:
    _busy(log)
    rows = reads.rows(columns="amount, id")
    assert list(rows[0])[:3] == ["id", "amount", "_op"]
    deletes = [row["_before"] for row in rows if row["_op"] == "delete"]
    assert deletes == [{"id": 30, "amount": None}]


def test_bounds_cut_inside_a_transaction(reads: Reads, log: MadeLog) -> None:
    table = Table()
    end = log.insert(table, 1, 10)
    log.insert(table, 11, 10)
    after, upto = Offset(end.commit_lsn, 3), Offset(log.end.commit_lsn, 1)
    rows = reads.rows(startingOffset=after, endingOffset=upto)
    assert _ids(rows) == [5, 6, 7, 8, 9, 10, 11, 12]
    assert rows == decoded(log, "public.orders", after, upto)
    assert _ids(_flat(reads.batches(startingOffset=after))) == list(range(5, 21))


def test_times_bound_a_read(reads: Reads, log: MadeLog) -> None:
    table = Table()
    for number in range(4):
        log.commit(table, table.insert(number, "", 0), ts_us=number * 1_000_000)
    times = {
        "startingTimestamp": "2000-01-01 00:00:01+00",
        "endingTimestamp": "2000-01-01T00:00:02",
    }
    assert _ids(reads.rows(**times)) == [1, 2]
    assert _ids(_flat(reads.batches(startingTimestamp=times["startingTimestamp"]))) == [1, 2, 3]


def test_stream_from_latest_shows_what_comes_later(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1)
    assert _flat(reads.batches(startingOffset="latest")) == []
    log.insert(table, 2)
    assert _ids(_flat(reads.batches(startingOffset="latest"))) == [2]


def test_limit_of_changes_cuts_batches(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1, 7)
    log.insert(table, 8, 2)
    batches = reads.batches(maxChangesPerTrigger=3)
    assert [len(rows) for rows in batches] == [3, 3, 1, 2], "a segment's end is a good end"
    assert _ids(_flat(batches)) == list(range(1, 10))


def test_limit_of_bytes_cuts_batches(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1, 6, size=1000)
    batches = reads.batches(maxBytesPerTrigger=2500)
    assert [len(rows) for rows in batches] == [2, 2, 2]


def test_huge_transaction_is_read_by_ordinals(reads: Reads, log: MadeLog) -> None:
    table = Table()
    rows = [table.insert(key, "x", 1) for key in range(20)]
    log.commit_in_parts(table, *rows, cuts=[5, 12])
    log.insert(table, 20, 2)
    batches = reads.batches(maxChangesPerTrigger=7)
    assert len(batches) > 3 and max(len(rows) for rows in batches) == 7
    assert _flat(batches) == decoded(log, "public.orders", log.begin, log.end) == reads.rows()
    assert [row["_ordinal"] for row in _flat(batches)] == [*range(20), 0, 1]


def test_idle_stream_makes_no_batches(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1)
    found: list[pa.Table] = []
    stream = reads.stream(startingOffset="earliest")
    query = reads.start(stream, found.append, available_now=False)
    try:
        query.processAllAvailable()
        assert len(found) == 1
        for _ in range(5):
            query.processAllAvailable()
        assert len(found) == 1
        log.insert(table, 2)
        query.processAllAvailable()
        assert [len(rows) for rows in found] == [1, 1]
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert [each["batchId"] for each in progress] == [0, 1]
    finally:
        query.stop()
    offset = (reads.directory / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1]
    assert offset == log.end.to_json().replace(",", ", ").replace(":", ": ")


def test_stream_goes_on_from_its_checkpoint(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1, 5)
    first = reads.batches(maxChangesPerTrigger=2)
    log.insert(table, 6, 2)
    second = reads.batches(maxChangesPerTrigger=2)
    assert _ids(_flat(first)) == [1, 2, 3, 4, 5]
    assert _ids(_flat(second)) == [6, 7]
    assert reads.batches() == []


def test_large_range_is_read_by_several_tasks(reads: Reads, log: MadeLog) -> None:
    table = Table()
    for first in (0, 6, 12):
        log.insert(table, first, 6, size=1 << 20)
    frame = reads.batch(columns="id")
    assert frame.rdd.getNumPartitions() == 3
    assert _ids(in_order(frame.toArrow())) == list(range(18))


def test_empty_range_has_no_rows(reads: Reads, log: MadeLog) -> None:
    log.insert(Table(), 1)
    assert reads.rows(startingOffset="latest") == []
    assert reads.rows(startingOffset=log.end, endingOffset=log.end) == []


def test_merged_away_segments_are_read_from_the_merged_one(reads: Reads, log: MadeLog) -> None:
    table = Table()
    for key in range(6):
        log.insert(table, key)
    options = ReadOptions.of({"log": log.store.url, "table": "public.orders"})
    reader = TableReader(options, reads.batch().schema)
    planned = reader.partitions()
    merge_all(log)
    batches = [batch for partition in planned for batch in reader.read(partition)]
    assert _ids(in_order(pa.Table.from_batches(batches))) == list(range(6))


def test_merge_does_not_disturb_a_running_stream(reads: Reads, log: MadeLog) -> None:
    table = Table()
    for key in range(4):
        log.insert(table, key)
    found: Rows = []

    def take(rows: pa.Table) -> None:
        found.extend(in_order(rows))
        merge_all(log)

    reads.start(reads.stream(maxChangesPerTrigger=1), take).awaitTermination()
    assert _ids(found) == [0, 1, 2, 3]


def test_f093_dropped_changes_are_out_of_range_and_never_skipped(
    reads: Reads, log: MadeLog
) -> None:
    table = Table()
    log.insert(table, 1)
    assert _ids(_flat(reads.batches(startingOffset="earliest"))) == [1]
    for key in (2, 3, 4):
        log.insert(table, key)
    retain(log.store, RetentionPolicy(hard_bytes_max=1), now_s=LATER_S)
    with pytest.raises(PySparkException) as caught:
        reads.batches(startingOffset="earliest")
    assert told(caught.value).startswith("the log starts at ")
    with pytest.raises(PySparkException) as caught:
        reads.rows(startingOffset=log.begin)
    assert "retention has dropped these changes" in told(caught.value)
    assert _ids(reads.rows(startingOffset="earliest")) == [4], "earliest is what is left"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabel": "x"}, "the tailrace format has no option tabel"),
        (
            {"table": "public.nothing"},
            "the log holds neither a base nor a change of public.nothing (tables: public.",
        ),
        ({"columns": "id,nothing"}, "public.orders has no column nothing (columns: id, note, amou"),
        ({"log": "file:/nowhere/at/all"}, "there is no log at file:///nowhere/at/all"),
        ({"log": "/nowhere"}, "the store's URL has no scheme"),
        ({"endingOffset": "0/FFFF"}, "the log ends at 0/1064, before 0/FFFF"),
        ({"startingOffset": "0/FFFF"}, "the read starts after 0/FFFF, but ends at 0/1064"),
        ({"startingOffset": "soon"}, "startingOffset 'soon' is not a position"),
    ],
)
def test_mistake_is_one_line(
    reads: Reads, log: MadeLog, options: dict[str, str], message: str
) -> None:
    log.insert(Table(), 1)
    with pytest.raises(PySparkException) as caught:
        reads.batch(**options).collect()
    assert told(caught.value).startswith(message)


def test_stream_has_no_end(reads: Reads, log: MadeLog) -> None:
    log.insert(Table(), 1)
    with pytest.raises(PySparkException) as caught:
        reads.batches(endingOffset=log.end)
    assert told(caught.value) == "a stream has no end (endingOffset is for spark.read alone)"


def test_table_without_changes_is_named_as_such(reads: Reads, log: MadeLog) -> None:
    with pytest.raises(PySparkException) as caught:
        reads.batch()
    assert (
        told(caught.value)
        == "the log holds neither a base nor a change of public.orders (tables: none yet)"
    )


def test_lost_segment_ends_the_read(reads: Reads, log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1)
    log.insert(table, 2)
    log.store.delete([entry.key for entry in log.store.list("segments/")[1:2]])
    with pytest.raises(PySparkException) as caught:
        reads.rows()
    assert "is missing, and the log goes on after it" in told(caught.value)


def _filled(log: MadeLog) -> Table:
    """A table that had ten rows before the log knew of it, and a base of them."""
    table = Table()
    table.by_key = {key: (key, f"old {key}", None) for key in range(10)}
    log.insert(table, 20)
    log.base_of(table)
    log.commit(table, table.delete(3), table.update(4, 4, "new", None))
    return table


def test_f017_read_begins_with_the_base_and_goes_on_with_the_changes(
    reads: Reads, log: MadeLog
) -> None:
    table = _filled(log)
    rows = reads.rows()
    assert [row["_op"] for row in rows] == ["insert"] * 11 + ["delete", "update"]
    assert [row["_origin"] for row in rows] == ["snapshot"] * 11 + ["wal"] * 2
    assert reads.rows(startingOffset="base") == rows
    assert _flat(reads.batches()) == rows
    log.insert(table, 30)
    more = _flat(reads.batches())
    assert _ids(more) == [30], "a checkpoint goes on after the base"
    assert _ids(reads.rows(startingOffset="earliest")) == [20, 3, 4, 30]


def test_base_is_cut_by_the_limits_and_each_row_comes_once(reads: Reads, log: MadeLog) -> None:
    _filled(log)
    batches = reads.batches(maxChangesPerTrigger=3)
    assert [len(rows) for rows in batches] == [3, 3, 3, 2, 2]
    assert _flat(batches) == reads.rows()
    sizes = [len(rows) for rows in reads.batches(maxBytesPerTrigger=20, checkpoint="other")]
    assert sum(sizes) == 13 and len(sizes) > 4


def test_stream_goes_on_in_the_base_that_it_began_with(reads: Reads, log: MadeLog) -> None:
    table = _filled(log)
    seen: list[Rows] = []

    def take(rows: pa.Table) -> None:
        seen.append(in_order(rows))
        if len(seen) == 2:
            log.base_of(table)
            raise RuntimeError("dies in its second batch")

    with pytest.raises(PySparkException):
        reads.start(reads.stream(maxChangesPerTrigger=3), take).awaitTermination()
    rest = _flat(reads.batches(maxChangesPerTrigger=3))
    assert [row["_ordinal"] for row in seen[0] + rest if row["_origin"] == "snapshot"] == list(
        range(11)
    )
    assert [row["_op"] for row in rest[-2:]] == ["delete", "update"]


def test_read_of_a_past_begins_with_a_base_of_that_time(reads: Reads, log: MadeLog) -> None:
    table = _filled(log)
    end = log.end
    log.insert(table, 30)
    log.base_of(table)
    rows = reads.rows(startingOffset="base", endingOffset=end)
    assert [row["_op"] for row in rows] == ["insert"] * 11 + ["delete", "update"]
    with pytest.raises(PySparkException) as caught:
        reads.rows(startingOffset="base", endingOffset=Offset.whole(1))
    assert "public.orders" in told(caught.value)


def test_base_that_has_no_changes_yet_is_read(reads: Reads, log: MadeLog) -> None:
    table = Table(ITEMS)
    table.by_key = {1: (1, "a"), 2: (2, None)}
    log.base_of(table)
    assert _ids(reads.rows(table="public.items")) == [1, 2]
    assert _ids(_flat(reads.batches(table="public.items"))) == [1, 2]


def test_f058_older_base_is_read_under_the_newest_shape(reads: Reads, log: MadeLog) -> None:
    table = _filled(log)
    table.add_column("added")
    log.commit(table, table.update(5, 5, "wide", None, "new"))
    rows = reads.rows()
    assert [row["added"] for row in rows] == [None] * 13 + ["new"]
    assert "added:string" in dict(reads.batch().dtypes)["_before"]
