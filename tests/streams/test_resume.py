"""Where a stream goes on is what its record says, and no table is delivered without its start."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailrace.errors import OffsetOutOfRange
from tailrace.log import Reader
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.model import Offset
from tailrace.sinks.memory import MemorySink
from tailrace.storage import MemoryStore
from tailrace.streams.record import StreamRecord
from tailrace.streams.resume import Resume, resume
from tailrace.streams.taken import Taken
from tests.log import making
from tests.log.faulty_store import Killed, WatchedStore
from tests.spark.made_log import ITEMS, LATER_S, ORDERS, MadeLog, Table
from tests.streams.by_hand import ALL_TABLES, STREAM, Run, WatchedSink, rows_of

ORDERS_ONLY = ("public.orders",)


@pytest.fixture
def log() -> MadeLog:
    return MadeLog(MemoryStore())


def _resume(log: MadeLog, patterns: Sequence[str] = ALL_TABLES) -> Resume:
    record = StreamRecord(log.store, STREAM)
    return resume(record, Reader(log.store), patterns=patterns, writer="test")


def _orders(position: Offset) -> Taken:
    return Taken(ORDERS.oid, "public", "orders", making.START, position)


def test_new_stream_begins_at_the_beginning_and_stays_there(log: MadeLog) -> None:
    log.insert(Table(), 1)
    assert _resume(log) == Resume(log.begin, 1, ())
    log.insert(Table(ITEMS), 2)
    assert _resume(log) == Resume(log.begin, 1, ())


def test_finished_stream_goes_on_after_its_last_batch(log: MadeLog) -> None:
    end = log.insert(Table(), 1)
    Run(log.store, MemorySink()).to_end()
    assert _resume(log) == Resume(end, 3, (_orders(end),))


def test_unfinished_batch_comes_again_with_its_own_end(log: MadeLog) -> None:
    table = Table()
    end = log.insert(table, 1)

    def kill(what: str, key: str) -> None:
        if what == "put" and "/done/" in key and key.endswith("2"):
            raise Killed

    store = WatchedStore(log.store, before=kill)
    with pytest.raises(Killed):
        Run(store, MemorySink(), log=log.store).to_end()
    log.insert(table, 2)
    found = _resume(log)
    assert found.unfinished is not None
    assert (found.start, found.sequence, found.unfinished.upto) == (log.begin, 2, end)
    assert found.tables == (_orders(log.begin),)


def test_table_that_is_added_later_is_loaded_and_caught_up(log: MadeLog) -> None:
    items, orders, sink = Table(ITEMS), Table(), WatchedSink()
    log.insert(items, 1)
    log.insert(orders, 1)
    Run(log.store, sink, patterns=ORDERS_ONLY).to_end()
    log.commit(items, items.update(1, 1, "new"))
    log.insert(orders, 2)
    Run(log.store, sink).to_end()
    assert rows_of(sink, "public.items") == items.rows
    assert rows_of(sink) == orders.rows
    delivered = [c.relation.name for batch in sink.given for c in batch.tables]
    assert delivered == ["orders", "items", "items", "orders"], "no order came twice"


def test_table_that_is_taken_out_and_put_back_is_loaded_anew(log: MadeLog) -> None:
    items, orders, sink = Table(ITEMS), Table(), WatchedSink()
    log.insert(items, 1)
    log.insert(orders, 1)
    Run(log.store, sink).to_end()
    log.insert(items, 2)
    log.insert(orders, 2)
    Run(log.store, sink, patterns=ORDERS_ONLY).to_end()
    log.insert(items, 3)
    Run(log.store, sink).to_end()
    assert rows_of(sink, "public.items") == items.rows
    assert [load.relation.name for load in sink.loads] == ["items", "orders", "items"]


def test_reset_stream_takes_every_table(log: MadeLog) -> None:
    items, sink = Table(ITEMS), MemorySink()
    log.insert(items, 1)
    log.insert(Table(), 1)
    Run(log.store, sink, patterns=ORDERS_ONLY).to_end()
    StreamRecord(log.store, STREAM).forget()
    Run(log.store, sink).to_end()
    assert rows_of(sink, "public.items") == items.rows


def test_stream_that_was_reset_delivers_again_to_a_sink_that_has_all(log: MadeLog) -> None:
    table, sink = Table(), MemorySink()
    for key in range(5):
        log.insert(table, key)
    Run(log.store, sink, changes_max=1).to_end()
    StreamRecord(log.store, STREAM).forget()
    # Fewer and larger batches than before: old numbers would hide new changes.
    log.commit(table, table.update(1, 1, "changed", None))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows


def test_f093_stream_whose_changes_were_dropped_does_not_skip_them(log: MadeLog) -> None:
    table = Table()
    log.insert(table, 1)
    Run(log.store, MemorySink()).to_end()
    for key in (2, 3, 4):
        log.insert(table, key)
    waits = RetentionPolicy(bytes_max=1)
    assert retain(log.store, waits, now_s=LATER_S) <= _resume(log).start.commit_lsn
    retain(log.store, RetentionPolicy(hard_bytes_max=1), now_s=LATER_S)
    with pytest.raises(OffsetOutOfRange, match="the log starts at"):
        Run(log.store, MemorySink()).to_end()


def test_a_removed_stream_that_comes_back_counts_on_and_takes_up_every_table_anew(
    log: MadeLog,
) -> None:
    sink = MemorySink()
    table = Table()
    log.insert(table, 1)
    Run(log.store, sink).to_end()
    before = _resume(log).sequence
    StreamRecord(log.store, STREAM).remove()
    # Nobody needs the older part of the log.
    log.insert(table, 2)
    log.base_of(table)
    retain(log.store, RetentionPolicy(age_s=0), now_s=LATER_S)
    found = _resume(log)
    assert (found.tables, found.unfinished) == ((), None)
    assert found.start == Offset.whole(Reader(log.store).begin()) and found.sequence > before
    Run(log.store, sink).to_end()
    assert [row[0] for row in rows_of(sink)] == [1, 2]
