"""The pipeline on Spark: from a log to sinks, each stream on its own."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.compaction import Compactor, on_spark
from tailrace.errors import LogFenced, OffsetOutOfRange, SinkError
from tailrace.log.bases import newest_bases
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.sinks import Batch
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.memory import MemorySink
from tailrace.storage import FileStore
from tailrace.streams import Stream, pipeline, setbacks
from tailrace.streams.record import StreamRecord
from tailrace.streams.upkeep import Upkeep
from tests.capture.running import wait_until
from tests.spark.made_log import ITEMS, LATER_S, MadeLog, Table, merge_all
from tests.streams.by_hand import STREAM, Run, WatchedSink, rows_of
from tests.streams.running import (
    PATIENCE_S,
    BadSink,
    RunningPipeline,
    lake_rows,
    lake_stream,
    lake_table,
    stream,
)


@pytest.fixture
def orders(log: MadeLog) -> Table:
    """A table with a short life."""
    table = Table()
    log.insert(table, 1, 20)
    log.commit(table, table.update(1, 100, "moved", None), table.delete(2))
    return table


def _is_once(rows: Iterable[object], count: int) -> bool:
    found = [str(row) for row in rows]
    return len(found) == len(set(found)) == count


def test_log_is_delivered_to_every_sink_while_it_grows(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    items, memory, shown = Table(ITEMS), MemorySink(), io.StringIO()
    log.insert(items, 1, 3)
    log.commit(items, items.truncate(), items.insert(7, "after"))
    streams = [
        lake_stream("lake", tmp_path / "lake"),
        lake_stream("history", tmp_path / "history", "append"),
        stream("memory", memory, changes_max=5),
        stream("console", ConsoleSink(shown)),
    ]
    names = [each.name for each in streams]
    # One that has no table yet holds up nobody.
    idle = Stream("idle", ["public.nowhere"], lambda _: MemorySink())
    with RunningPipeline(spark, log.store, tmp_path, idle, *streams) as at_work:
        at_work.wait_for(log.end, *names)
        log.insert(orders, 200)
        merge_all(log)
        orders.add_column("added")
        log.commit(orders, orders.update(3, 3, "wide", None, "new"))
        at_work.wait_for(log.end, *names)
    assert at_work.error is None
    assert lake_rows(tmp_path / "lake") == rows_of(memory) == orders.rows
    assert lake_rows(tmp_path / "lake", "public/items") == items.rows
    assert _is_once(lake_table(tmp_path / "history").to_pylist(), 24)
    assert _is_once(shown.getvalue().splitlines(), 2 + 24 + 5)


def test_f102_stream_goes_on_where_it_was(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    lake = lake_stream("history", tmp_path / "history", "append")
    for key in (200, 201):
        with RunningPipeline(spark, log.store, tmp_path, lake) as at_work:
            at_work.wait_for(log.end, "history")
        log.insert(orders, key)
    with RunningPipeline(spark, log.store, tmp_path, lake) as at_work:
        at_work.wait_for(log.end, "history")
    assert _is_once(lake_table(tmp_path / "history").to_pylist(), 24)


def test_f092_checkpoint_that_is_damaged_or_gone_loses_and_doubles_nothing(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    lake = lake_stream("history", tmp_path / "history", "append")
    checkpoints = tmp_path / "work" / "checkpoints" / "history"
    with RunningPipeline(spark, log.store, tmp_path, lake) as at_work:
        at_work.wait_for(log.end, "history")
        shutil.rmtree(checkpoints)
        log.insert(orders, 200)
        at_work.wait_for(log.end, "history")
    for file in [path for path in checkpoints.rglob("*") if path.is_file()]:
        file.write_bytes(b"")
    log.insert(orders, 201)
    with RunningPipeline(spark, log.store, tmp_path, lake) as at_work:
        at_work.wait_for(log.end, "history")
    assert _is_once(lake_table(tmp_path / "history").to_pylist(), 24)


def test_f106_failing_sink_stops_its_own_stream_alone(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    refusal = SinkError("access denied", hint="grant it")
    memory = MemorySink()
    streams = [stream("bad", BadSink(MemorySink(), refusal)), stream("good", memory)]
    with RunningPipeline(spark, log.store, tmp_path, *streams) as at_work:
        stopped = at_work.wait_for_stop("bad")
        log.insert(orders, 200)
        at_work.wait_for(log.end, "good")
    assert stopped.error is refusal
    assert at_work.error is refusal, "the reason is told at the end"
    assert rows_of(memory) == orders.rows


def test_f106_log_whose_store_takes_and_gives_nothing_is_waited_for(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    memory, place, aside = MemorySink(), tmp_path / "log", tmp_path / "aside"
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, memory)) as at_work:
        at_work.wait_for(log.end, STREAM)
        place.rename(aside)
        # As with a right that is missing: the store says that a person must see to it.
        place.write_bytes(b"")
        wait_until(lambda: at_work.state(STREAM).error is not None, patience_s=PATIENCE_S)
        assert not at_work.state(STREAM).is_stopped
        place.unlink()
        aside.rename(place)
        log.insert(orders, 200)
        at_work.wait_for(log.end, STREAM)
        wait_until(lambda: at_work.state(STREAM).error is None, patience_s=PATIENCE_S)
    assert rows_of(memory) == orders.rows


@pytest.mark.parametrize("stays", [False, True])
def test_f106_pipeline_ends_with_its_last_stream_unless_it_is_to_stay(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path, stays: bool
) -> None:
    bad = stream(STREAM, BadSink(MemorySink(), SinkError("access denied")))
    with RunningPipeline(spark, log.store, tmp_path, bad, stays=stays) as at_work:
        at_work.wait_for_stop(STREAM)
        if stays:
            time.sleep(pipeline.POLL_S * 10)
            assert at_work.is_alive
        else:
            wait_until(lambda: not at_work.is_alive, patience_s=PATIENCE_S)


def test_passing_failure_is_tried_again_until_it_has_passed(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    memory = MemorySink()
    sink = BadSink(memory, SinkError("the network is down", retry=True), times=2)
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, sink)) as at_work:
        at_work.wait_for(log.end, STREAM)
        wait_until(lambda: at_work.state(STREAM).error is None, patience_s=PATIENCE_S)
    assert sink.times == 0
    assert rows_of(memory) == orders.rows
    assert at_work.error is None


def test_unknown_failure_is_tried_again_so_often_and_no_more(
    spark: SparkSession,
    log: MadeLog,
    orders: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setbacks, "UNKNOWN_FAILURES_MAX", 1)
    sink = BadSink(MemorySink(), ZeroDivisionError("a bug"))
    tried_before = sink.times
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, sink)) as at_work:
        stopped = at_work.wait_for_stop(STREAM)
    assert tried_before - sink.times == 2
    assert str(stopped.error) == "the query failed: ZeroDivisionError: a bug"
    assert at_work.error is stopped.error


def test_sink_that_cannot_be_opened_stops_its_stream(
    spark: SparkSession, log: MadeLog, tmp_path: Path
) -> None:
    def refuse(_: str) -> MemorySink:
        raise SinkError("no such bucket")

    told = Stream(STREAM, ["public.*"], refuse)
    with RunningPipeline(spark, log.store, tmp_path, told) as at_work:
        at_work.wait_for_stop(STREAM)
    assert str(at_work.error) == "no such bucket"


def test_lake_table_that_was_deleted_is_not_made_anew(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    lake = lake_stream(STREAM, tmp_path / "lake")
    with RunningPipeline(spark, log.store, tmp_path, lake) as at_work:
        at_work.wait_for(log.end, STREAM)
        shutil.rmtree(tmp_path / "lake" / "public" / "orders")
        log.insert(orders, 200)
        stopped = at_work.wait_for_stop(STREAM)
    assert isinstance(stopped.error, SinkError)
    assert "is gone, but rows were delivered to it" in str(stopped.error)
    assert "put the table back" in stopped.error.hint
    assert not (tmp_path / "lake" / "public" / "orders").exists()


def test_f093_dropped_changes_stop_the_stream_with_one_line(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    Run(log.store, MemorySink()).to_end()
    for key in (200, 201, 202):
        log.insert(orders, key)
    retain(log.store, RetentionPolicy(hard_bytes_max=1), now_s=LATER_S)
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, MemorySink())) as at_work:
        stopped = at_work.wait_for_stop(STREAM)
    assert isinstance(stopped.error, OffsetOutOfRange)
    assert str(stopped.error).startswith("the log starts at ")


def test_stream_that_was_reset_elsewhere_stops_with_its_reason(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, MemorySink())) as at_work:
        at_work.wait_for(log.end, STREAM)
        StreamRecord(log.store, STREAM).forget()
        log.insert(orders, 200)
        stopped = at_work.wait_for_stop(STREAM)
    assert isinstance(stopped.error, LogFenced)
    assert "another pipeline delivers stream lake, or it was reset" in str(stopped.error)


def test_pipeline_waits_for_the_log_to_begin(spark: SparkSession, tmp_path: Path) -> None:
    store, memory, table = FileStore(tmp_path / "log"), MemorySink(), Table()
    with RunningPipeline(spark, store, tmp_path, stream(STREAM, memory)) as waiting:
        pass
    assert waiting.error is None
    with RunningPipeline(spark, store, tmp_path, stream(STREAM, memory)) as at_work:
        log = MadeLog(store)
        log.insert(table, 1)
        at_work.wait_for(log.end, STREAM)
    assert rows_of(memory) == table.rows


class _SlowSink(MemorySink):
    """Its first write lasts until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing, self.let_go = threading.Event(), threading.Event()
        self.is_closed = False

    def write(self, batch: Batch) -> None:
        self.is_writing.set()
        assert self.let_go.wait(PATIENCE_S)
        assert not self.is_closed
        super().write(batch)

    def close(self) -> None:
        self.is_closed = True


def test_stop_waits_for_the_batch_that_is_at_the_sink(
    spark: SparkSession, log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    sink = _SlowSink()
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, sink)) as at_work:
        assert sink.is_writing.wait(PATIENCE_S)
        at_work.stop()
        sink.let_go.set()
    assert sink.is_closed and not at_work.pipeline.is_left
    assert at_work.error is None
    assert rows_of(sink) == orders.rows
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert all(thread.daemon for thread in left), left
    assert not any("tailrace" in thread.name for thread in left)


def test_sink_that_hangs_does_not_hold_up_the_stop(
    spark: SparkSession,
    log: MadeLog,
    orders: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "STOP_S", 0.1)
    sink = _SlowSink()
    with RunningPipeline(spark, log.store, tmp_path, stream(STREAM, sink)) as at_work:
        assert sink.is_writing.wait(PATIENCE_S)
    assert not sink.is_closed and at_work.pipeline.is_left, "left to itself"
    assert at_work.error is None
    sink.let_go.set()
    wait_until(lambda: sink.is_closed, patience_s=PATIENCE_S)


class _StuckSink(MemorySink):
    """Refuses what it is given, and does not come to its end until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, batch: Batch) -> None:
        raise SinkError("no such bucket")

    def close(self) -> None:
        assert self.let_go.wait(PATIENCE_S)


def test_f106_sinks_that_hang_hold_up_neither_other_streams_nor_the_stop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "STOP_S", 0.1)
    log, slow, stuck = (
        MadeLog(FileStore(tmp_path / "log"), has_bases=False),
        _SlowSink(),
        _StuckSink(),
    )
    sink, orders, items = WatchedSink(), Table(), Table(ITEMS)
    log.base_of(orders)
    log.insert(orders, 1)
    streams = [stream("slow", slow), stream("stuck", stuck), stream("lake", sink)]
    with RunningPipeline(spark, log.store, tmp_path, *streams) as at_work:
        assert slow.is_writing.wait(PATIENCE_S)
        at_work.wait_for_stop("stuck")
        at_work.wait_for(log.end, "lake")
        for key in (2, 3, 4):
            # Each time a base that the slow one is to load as well, once its batch is delivered.
            log.insert(orders, key)
            items.by_key = {key: (key, "told by no change")}
            log.base_of(items)
            _wait_for_rows(sink, items)
    assert str(at_work.error) == "no such bucket"
    assert not slow.is_closed, "left to itself"
    slow.let_go.set()
    stuck.let_go.set()
    wait_until(lambda: slow.is_closed, patience_s=PATIENCE_S)
    # What its query had handed over by then, which may be one more, is delivered.
    assert rows_of(slow) in (orders.rows[:1], orders.rows[:2])


def test_f022_bases_that_appear_while_a_stream_runs_are_loaded(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, sink = MadeLog(FileStore(tmp_path / "log"), has_bases=False), WatchedSink()
    orders, items = Table(), Table(ITEMS)
    items.by_key = {key: (key, f"old {key}") for key in range(20)}
    with RunningPipeline(spark, log.store, tmp_path, stream("lake", sink)) as at_work:
        log.base_of(orders)
        log.insert(orders, 1)
        at_work.wait_for(log.end, "lake")
        log.commit(items, items.delete(3))
        log.insert(orders, 2)
        at_work.wait_for(log.end, "lake")
        assert not sink.committed("lake", [ITEMS]), "a table without a base waits"
        log.base_of(items)
        log.commit(items, items.delete(4))
        _wait_for_rows(sink, items)
        del items.by_key[5]  # told by no change
        log.base_of(items)
        log.insert(orders, 3)
        _wait_for_rows(sink, items)
        at_work.wait_for(log.end, "lake")
    assert at_work.error is None
    assert rows_of(sink) == orders.rows
    assert rows_of(sink, "public.items") == items.rows
    assert [load.relation.name for load in sink.loads] == ["orders", "items", "items"]


def _wait_for_rows(sink: WatchedSink, table: Table) -> None:
    name = table.relation.qualified
    wait_until(
        lambda: (
            bool(sink.committed("lake", [table.relation])) and rows_of(sink, name) == table.rows
        ),
        patience_s=PATIENCE_S,
    )


def test_bases_are_folded_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    log, table, sink = MadeLog(FileStore(tmp_path / "log"), has_bases=False), Table(), WatchedSink()
    table.by_key = {key: (key, f"old {key}", 1) for key in range(1, 50)}
    log.base_of(table)
    log.commit(table, table.delete(3), table.update(4, 400, "new", None))
    compactor = Compactor(log.store, on_spark(spark))
    now_s = time.time()
    assert not compactor.due(interval_s=3600, now_s=now_s)
    Upkeep(compactor, interval_s=0).turn(now_s + 1)
    (base,) = newest_bases(log.store).values()
    assert (base.position, base.row_count) == (log.wal.end, len(table.rows))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    assert not sink.given
