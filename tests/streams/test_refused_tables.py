"""Tables that a sink cannot take, or not as they are: the others flow, and a cure reaches them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pytest

from tailrace.errors import SchemaError, TargetLost
from tailrace.model import Lsn
from tailrace.sinks import Load
from tailrace.spark.selection import Selection
from tailrace.storage import MemoryStore
from tailrace.streams.record import StreamRecord
from tailrace.streams.repair import Repair, give_repair
from tests.spark.made_log import ITEMS, MadeLog, Table
from tests.streams.by_hand import STREAM, Run, WatchedSink, filled, rows_of


@pytest.fixture
def log() -> MadeLog:
    return MadeLog(MemoryStore(), has_bases=False)


def test_f052_table_without_a_key_is_left_out_of_an_upsert_and_the_others_flow(
    log: MadeLog, caplog: pytest.LogCaptureFixture
) -> None:
    loose = Table(replace(ITEMS, is_keyless=True))
    table, sink = filled(Table()), WatchedSink()
    log.base_of(filled(loose))
    log.base_of(table)
    log.insert(table, 20)
    assert Run(log.store, sink).to_end() == log.end
    assert [load.relation for load in sink.loads] == [table.relation]
    assert rows_of(sink) == table.rows
    assert f"table left out of the stream table={ITEMS.qualified} reason=no key" in caplog.text
    own = Selection.of(columns=None, where=None, key=("id",))
    by_id = WatchedSink()
    Run(log.store, by_id, stream="own", patterns=[ITEMS.qualified], selection=own).to_end()
    assert [load.relation.qualified for load in by_id.loads] == [ITEMS.qualified]


def test_f058_new_base_gets_a_stream_over_a_shape_that_its_sink_refuses(log: MadeLog) -> None:
    table, other, sink = filled(Table()), filled(Table(ITEMS)), WatchedSink()
    for each in (table, other):
        log.base_of(each)
    Run(log.store, sink).to_end()
    key, second, *rest = table.relation.columns
    columns = (key, replace(second, name="renamed"), *rest)
    table.alter(replace(table.relation, columns=columns))
    log.commit(table, table.insert(20, "x", 1))
    log.commit(other, other.insert(20, "y"))
    for _ in range(2):
        with pytest.raises(SchemaError):
            Run(log.store, sink).to_end()
    log.base_of(table)
    log.commit(table, table.insert(21, "z", 1))
    assert Run(log.store, sink).to_end() == log.end
    assert rows_of(sink) == table.rows
    assert rows_of(sink, "public.items") == other.rows


def test_new_base_gets_a_stream_over_a_target_that_was_taken_away(log: MadeLog) -> None:
    """The number of the batch that was refused is taken: it comes before any load."""
    table, other, sink = filled(Table()), filled(Table(ITEMS)), WatchedSink()
    for each in (table, other):
        log.base_of(each)
    Run(log.store, sink).to_end()
    sink.drop("public.orders")
    log.commit(table, table.insert(20, "x", 1))
    log.commit(other, other.insert(20, "y"))
    for _ in range(2):
        with pytest.raises(TargetLost):
            Run(log.store, sink).to_end()
    log.base_of(table)
    log.commit(table, table.insert(21, "z", 1))
    assert Run(log.store, sink).to_end() == log.end
    assert rows_of(sink) == table.rows
    assert rows_of(sink, "public.items") == other.rows


def test_new_base_gets_a_stream_over_a_repair_of_a_target_that_was_taken_away(
    log: MadeLog,
) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    log.commit(table, table.insert(20, "x", 1))
    at = Run(log.store, sink).to_end()
    sink.drop("public.orders")
    record = StreamRecord(log.store, STREAM)
    newest, rows = record.newest(), sink.given[-1].tables[0]
    assert newest is not None
    with pytest.raises(TargetLost):
        give_repair(STREAM, sink, record, newest, Repair(rows, at))
    with pytest.raises(TargetLost):
        Run(log.store, sink)
    log.base_of(table, position=Lsn(log.wal.end + 1))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows


class _Refuses(WatchedSink):
    """Takes no load of one table, as an upsert of a table without a key."""

    refused = "public.orders"

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        if load.relation.qualified == self.refused:
            raise SchemaError("has no key")
        super().load(load, rows)


def test_load_that_is_refused_is_given_up_with_its_table(log: MadeLog) -> None:
    table, other, sink = filled(Table()), filled(Table(ITEMS)), _Refuses()
    log.base_of(table)
    with pytest.raises(SchemaError):
        Run(log.store, sink)
    log.base_of(other)
    Run(log.store, sink, patterns=["public.items"]).to_end()
    assert rows_of(sink, "public.items") == other.rows


def test_load_that_is_refused_gives_way_to_a_table_that_was_read_anew(log: MadeLog) -> None:
    table, sink = filled(Table()), _Refuses()
    log.base_of(table)
    with pytest.raises(SchemaError):
        Run(log.store, sink)
    log.insert(table, 20)
    log.base_of(table)
    sink.refused = ""
    Run(log.store, sink).to_end()
    assert [load.sequence for load in sink.loads] == [2]
    assert rows_of(sink) == table.rows
