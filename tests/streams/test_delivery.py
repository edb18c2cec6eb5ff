"""Delivery without Spark: whatever dies between any two steps, the sink ends with what the source
has.
"""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogFenced, SinkError
from tailrace.sinks import Batch
from tailrace.sinks.memory import MemorySink
from tailrace.storage import MemoryStore
from tests.log.faulty_store import Killed, dying
from tests.spark.made_log import ITEMS, MadeLog, Table
from tests.streams.by_hand import Run, WatchedSink, rows_of


def _history(log: MadeLog, seed: int = 0, transactions: int = 6) -> tuple[Table, Table]:
    """Two tables and a random life of theirs."""
    random, tables = Random(seed), (Table(), Table(ITEMS))
    keys = count(1)
    for _ in range(transactions):
        table = random.choice(tables)
        log.commit(table, *(_change(random, table, next(keys)) for _ in range(4)))
    return tables


def _change(random: Random, table: Table, new: int) -> bytes:
    old = random.choice(list(table.by_key)) if table.by_key else None
    row = (new, f"note {new}", 1)[: len(table.relation.columns)]
    kind = random.choice(["insert", "update", "move", "delete"])
    if old is None or kind == "insert":
        return table.insert(*row)
    if kind == "delete":
        return table.delete(old)
    return table.update(old, old if kind == "update" else new, *row[1:])


def _check(sink: WatchedSink, tables: tuple[Table, ...]) -> None:
    sink.check_numbers()
    for table in tables:
        if table.is_announced:
            assert rows_of(sink, table.relation.qualified) == table.rows


@pytest.mark.slow
def test_kill_before_any_effect_on_the_record_loses_and_doubles_nothing() -> None:
    for effect in count():
        log, sink = MadeLog(MemoryStore()), WatchedSink()
        tables = _history(log)
        try:
            Run(dying(log.store, effect), sink, changes_max=5, log=log.store).to_end()
        except Killed:
            Run(log.store, sink, changes_max=7).to_end()
            _check(sink, tables)
            continue
        break
    assert effect > 20, "the record was hardly touched"


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    deaths=st.lists(st.integers(0, 15), max_size=6),
    limits=st.lists(st.integers(1, 30), min_size=1, max_size=3),
)
def test_any_row_of_deaths_ends_with_what_the_source_has(
    seed: int, deaths: list[int], limits: list[int]
) -> None:
    log, sink = MadeLog(MemoryStore()), WatchedSink()
    tables = _history(log, seed)
    for number, effect in enumerate(deaths):
        limit = limits[number % len(limits)]
        try:
            Run(dying(log.store, effect), sink, changes_max=limit, log=log.store).to_end()
        except Killed:
            continue
    assert Run(log.store, sink).to_end() == log.end
    _check(sink, tables)


def test_f102_batch_that_the_sink_has_is_not_applied_again() -> None:
    class DiesAfterWrite(WatchedSink):
        def write(self, batch: Batch) -> None:
            super().write(batch)
            if len(self.given) == 1:
                raise Killed

    log, table, sink = MadeLog(MemoryStore()), Table(), DiesAfterWrite()
    log.insert(table, 1, 3)
    with pytest.raises(Killed):
        Run(log.store, sink).to_end()
    log.commit(table, table.delete(1))
    Run(log.store, sink).to_end()
    first, again, rest = sink.given
    assert (first.sequence, first.after, first.upto) == (again.sequence, again.after, again.upto)
    assert rest.sequence == first.sequence + 1
    assert len(sink.batches) == 2, "the second time changed nothing"
    assert rows_of(sink) == table.rows


def test_two_pipelines_of_one_stream_cannot_both_go_on() -> None:
    log, table, sink = MadeLog(MemoryStore()), Table(), WatchedSink()
    for key in range(6):
        log.insert(table, key)
    first, second = (Run(log.store, sink, changes_max=1) for _ in range(2))
    assert first.step()
    with pytest.raises(LogFenced, match="another pipeline"):
        second.step()
    first.to_end()
    assert rows_of(sink) == table.rows
    assert [batch.sequence for batch in sink.given] == list(range(2, 8))


def test_pipeline_that_takes_over_fences_the_one_before() -> None:
    log, table, sink = MadeLog(MemoryStore()), Table(), WatchedSink()
    for key in range(4):
        log.insert(table, key)
    old = Run(log.store, sink, changes_max=1)
    old.step()
    new = Run(log.store, sink, changes_max=2)
    new.step()
    with pytest.raises(LogFenced):
        old.step()
    new.to_end()
    _check(sink, (table,))


def test_failed_write_leaves_the_batch_to_come_again() -> None:
    class FailsOnce(WatchedSink):
        def write(self, batch: Batch) -> None:
            super().write(batch)
            if len(self.given) == 1:
                raise SinkError("the network is down", retry=True)

    log, table, sink = MadeLog(MemoryStore()), Table(), FailsOnce()
    log.insert(table, 1)
    run = Run(log.store, sink)
    with pytest.raises(SinkError):
        run.to_end()
    assert run.delivery.delivered.position == log.begin
    assert Run(log.store, sink).to_end() == log.end
    assert [batch.sequence for batch in sink.given] == [2, 2]


def test_sink_is_told_which_tables_it_must_have() -> None:
    log, orders, items, sink = MadeLog(MemoryStore()), Table(), Table(ITEMS), WatchedSink()
    log.insert(orders, 1)
    log.insert(items, 1)
    log.insert(orders, 2)
    Run(log.store, sink, changes_max=1).step()
    Run(log.store, sink, changes_max=1).to_end()
    known = [sorted(batch.known_tables) for batch in sink.given]
    assert known == [["public.items", "public.orders"]] * 3


def test_table_that_was_taken_away_is_noticed_after_a_restart() -> None:
    log, table, sink = MadeLog(MemoryStore()), Table(), MemorySink()
    log.insert(table, 1)
    Run(log.store, sink).to_end()
    sink.drop("public.orders")
    log.insert(table, 2)
    with pytest.raises(SinkError, match=r"public\.orders is gone"):
        Run(log.store, sink).to_end()


def test_new_log_is_not_delivered_over_what_an_old_one_has_left() -> None:
    log, table, sink = MadeLog(MemoryStore()), Table(), WatchedSink()
    log.insert(table, 1)
    Run(log.store, sink).to_end()
    before = rows_of(sink)
    log, table = MadeLog(MemoryStore()), Table()
    log.insert(table, 2)
    for _ in range(2):  # also not the second time
        with pytest.raises(SinkError, match="from another log") as caught:
            Run(log.store, sink).to_end()
        assert not caught.value.retry
    assert rows_of(sink) == before
    sink.drop("public.orders")
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows


def test_batch_without_a_wanted_change_moves_the_stream() -> None:
    log, sink = MadeLog(MemoryStore()), WatchedSink()
    log.insert(Table(ITEMS), 1)
    assert Run(log.store, sink, patterns=["public.orders"]).to_end() == log.end
    assert [batch.tables for batch in sink.given] == [()]


def test_shape_change_is_a_batch_of_its_own() -> None:
    log, table, sink = MadeLog(MemoryStore()), Table(), WatchedSink()
    log.insert(table, 1, 2)
    table.add_column("added")
    log.commit(table, table.insert(3, "x", 1, "new"))
    Run(log.store, sink).to_end()
    shapes = [len(changes.relation.columns) for batch in sink.given for changes in batch.tables]
    assert shapes == [3, 4]
    assert rows_of(sink) == table.rows


def test_run_tells_how_much_it_has_delivered() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    log.insert(table, 1, 3)
    log.insert(table, 4, 2)
    run = Run(log.store, MemorySink(), changes_max=3)
    run.to_end()
    delivered = run.delivery.delivered
    assert (delivered.position, delivered.batch_count, delivered.change_count) == (log.end, 2, 5)
