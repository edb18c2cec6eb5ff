"""Where a stream goes on is what its record says, and no table is delivered without its start."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailrace.errors import ConfigError, OffsetOutOfRange
from tailrace.log import Reader
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.sinks.memory import MemorySink
from tailrace.storage import MemoryStore
from tailrace.streams.record import StreamRecord
from tailrace.streams.resume import Resume, resume
from tests.log.faulty_store import Killed, WatchedStore
from tests.spark.made_log import ITEMS, LATER_S, MadeLog, Table
from tests.streams.by_hand import ALL_TABLES, STREAM, Run, rows_of

ORDERS_ONLY = ("public.orders",)


@pytest.fixture
def log() -> MadeLog:
    return MadeLog(MemoryStore())


def _resume(log: MadeLog, patterns: Sequence[str] = ALL_TABLES) -> Resume:
    record = StreamRecord(log.store, STREAM)
    return resume(record, Reader(log.store), patterns=patterns, writer="test")


def test_new_stream_begins_at_the_beginning_and_stays_there(log: MadeLog) -> None:
    log.insert(Table(), 1)
    assert _resume(log) == Resume(log.begin, 1, frozenset())
    log.insert(Table(ITEMS), 2)
    assert _resume(log) == Resume(log.begin, 1, frozenset())


def test_finished_stream_goes_on_after_its_last_batch(log: MadeLog) -> None:
    end = log.insert(Table(), 1)
    Run(log.store, MemorySink()).to_end()
    assert _resume(log) == Resume(end, 2, frozenset({"public.orders"}))


def test_unfinished_batch_comes_again_with_its_own_end(log: MadeLog) -> None:
    table = Table()
    end = log.insert(table, 1)

    def kill(what: str, key: str) -> None:
        if what == "put" and "/done/" in key:
            raise Killed

    store = WatchedStore(log.store, before=kill)
    with pytest.raises(Killed):
        Run(store, MemorySink(), log=log.store).to_end()
    log.insert(table, 2)
    found = _resume(log)
    assert found.unfinished is not None
    assert (found.start, found.sequence, found.unfinished.upto) == (log.begin, 1, end)


def test_table_that_was_passed_over_is_refused(log: MadeLog) -> None:
    log.insert(Table(ITEMS), 1)
    log.insert(Table(), 1)
    Run(log.store, MemorySink(), patterns=ORDERS_ONLY).to_end()
    with pytest.raises(ConfigError, match=r"has passed over public\.items so far") as caught:
        _resume(log)
    assert "reset the stream" in caught.value.hint
    assert _resume(log, ORDERS_ONLY).sequence == 2


def test_table_without_a_past_may_be_added(log: MadeLog) -> None:
    items, sink = Table(ITEMS), MemorySink()
    log.insert(Table(), 1)
    Run(log.store, sink, patterns=ORDERS_ONLY).to_end()
    log.insert(items, 1)
    Run(log.store, sink).to_end()
    assert rows_of(sink, "public.items") == items.rows


def test_patterns_that_match_no_more_than_before_are_fine(log: MadeLog) -> None:
    log.insert(Table(), 1)
    Run(log.store, MemorySink()).to_end()
    assert _resume(log, ("public.orders", "public.*")).sequence == 2
    assert _resume(log, ("public.none",)).sequence == 2


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
