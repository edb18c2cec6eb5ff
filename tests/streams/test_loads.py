"""A stream takes up tables by their bases: nothing is missed, nothing comes twice, and no moment
shows half a table.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogFenced, SchemaError, SinkError, TailraceError
from tailrace.log import Base, layout
from tailrace.log.bases import newest_bases
from tailrace.log.retention import RetentionPolicy, reader_positions, retain
from tailrace.model import Lsn, Relation
from tailrace.sinks import Load
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import MemoryStore
from tailrace.streams.loading import base_rows
from tailrace.streams.preparing import Stopped, load_due
from tailrace.streams.record import StreamRecord
from tailrace.streams.removing import remove_stream
from tests.log.faulty_store import Killed, dying
from tests.spark.made_log import ITEMS, MadeLog, Row, Table
from tests.streams.by_hand import STREAM, Run, WatchedSink, filled, rows_of


@pytest.fixture
def log() -> MadeLog:
    return MadeLog(MemoryStore(), has_bases=False)


def _drop_base(log: MadeLog, base: Base) -> None:
    prefix = layout.base_prefix(base.relation.oid, base.position)
    log.store.delete([entry.key for entry in log.store.list(prefix)])


def test_f017_base_and_the_changes_after_it_are_the_table(log: MadeLog) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.insert(table, 20)
    log.commit(table, table.delete(3), table.update(4, 4, "before", None))
    base = log.base_of(table)
    log.commit(table, table.delete(5), table.update(6, 60, "after", None))
    assert Run(log.store, sink).to_end() == log.end
    assert rows_of(sink) == table.rows
    (load,) = sink.loads
    assert (load.stream, load.sequence, load.position) == (STREAM, 1, base.position)
    assert load.relation == table.relation
    assert [len(c.rows) for batch in sink.given for c in batch.tables] == [2]


def test_f017_change_that_ends_at_the_position_of_the_base_is_in_it(log: MadeLog) -> None:
    table, sink = Table(), WatchedSink()
    end = log.insert(table, 1)
    log.base_of(table, position=end.commit_lsn)
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    assert not sink.given


def test_table_without_a_base_waits_and_the_others_flow(log: MadeLog) -> None:
    orders, items, sink = Table(), filled(Table(ITEMS)), WatchedSink()
    log.base_of(orders)
    log.insert(orders, 1)
    log.commit(items, items.delete(1))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == orders.rows
    assert not sink.committed(STREAM, [items.relation])
    log.base_of(items)
    log.commit(items, items.delete(2))
    log.insert(orders, 2)
    Run(log.store, sink).to_end()
    assert rows_of(sink) == orders.rows
    assert rows_of(sink, "public.items") == items.rows


def test_base_older_than_the_stream_is_caught_up_alone(log: MadeLog) -> None:
    orders, items, sink = Table(), Table(ITEMS), WatchedSink()
    log.base_of(orders)
    log.insert(orders, 1)
    position = log.wal.end
    late = list(items.rows)
    log.insert(items, 1)
    log.insert(orders, 2)
    log.insert(items, 2)
    Run(log.store, sink).to_end()
    log.put_base(items.relation, late, position=position)
    log.insert(orders, 3)
    run = Run(log.store, sink)
    assert reader_positions(log.store) == {STREAM: position}, "retention keeps what is caught up"
    run.to_end()
    assert rows_of(sink) == orders.rows
    assert rows_of(sink, "public.items") == items.rows
    assert reader_positions(log.store) == {STREAM: log.end.commit_lsn}
    tables = [changes for batch in sink.given for changes in batch.tables]
    counts = Counter(each.relation.name for each in tables for _ in range(len(each.rows)))
    assert counts == {"items": 2, "orders": 3}, "no change comes twice"


def test_base_ahead_of_the_log_lets_what_it_holds_pass(log: MadeLog) -> None:
    table, sink = Table(), WatchedSink()
    ahead = Lsn(log.wal.end + 250)
    base = [(1, "a", 1), (3, "b", 2)]
    log.put_base(table.relation, base, position=ahead)
    Run(log.store, sink).to_end()
    log.insert(table, 1)  # this one and the next end before the base: they are in it
    log.commit(table, table.insert(2, "gone by then", 2), table.update(1, 1, "old", 3))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == base
    log.insert(table, 4)
    Run(log.store, sink).to_end()
    assert [row[0] for row in rows_of(sink)] == [1, 3, 4]


def test_f022_newer_snapshot_is_a_new_generation_without_orphans(log: MadeLog) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    log.insert(table, 20)
    Run(log.store, sink).to_end()
    del table.by_key[3]  # a delete that no stream has told of
    log.base_of(table)
    log.insert(table, 21)
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    assert len(sink.loads) == 2
    Run(log.store, sink).to_end()
    assert len(sink.loads) == 2, "once for each generation"


def test_base_folded_from_the_log_is_nothing_new_to_who_has_its_generation(log: MadeLog) -> None:
    table, sink, new = filled(Table()), WatchedSink(), WatchedSink()
    first = log.base_of(table)
    log.insert(table, 20)
    Run(log.store, sink).to_end()
    log.base_of(table, folded_from=first.position)
    log.insert(table, 21)
    Run(log.store, sink).to_end()
    Run(log.store, new, stream="new").to_end()
    assert len(sink.loads) == 1 and len(new.loads) == 1
    assert rows_of(sink) == rows_of(new) == table.rows


def test_table_that_was_made_again_replaces_the_one_of_its_name(log: MadeLog) -> None:
    old, sink = filled(Table()), WatchedSink()
    log.base_of(old)
    log.insert(old, 20)
    Run(log.store, sink).to_end()
    again = Table(replace(old.relation, oid=old.relation.oid + 1))
    log.insert(again, 1)
    Run(log.store, sink).to_end()
    assert rows_of(sink) == old.rows, "the new one waits for its base"
    log.base_of(again)
    log.insert(again, 2)
    Run(log.store, sink).to_end()
    assert rows_of(sink) == again.rows
    log.base_of(old, folded_from=log.begin.commit_lsn)  # compaction does not know that it is gone
    Run(log.store, sink).to_end()
    assert rows_of(sink) == again.rows


def test_renamed_table_waits_for_a_base_of_its_new_name(log: MadeLog) -> None:
    table, sink = Table(), WatchedSink()
    log.base_of(table)
    log.insert(table, 1)
    Run(log.store, sink).to_end()
    table.alter(replace(table.relation, name="renamed"))
    log.insert(table, 2)
    Run(log.store, sink).to_end()
    log.base_of(table)
    log.insert(table, 3)
    Run(log.store, sink).to_end()
    assert rows_of(sink, "public.renamed") == table.rows


def test_load_begins_with_the_shape_of_the_base_and_goes_on_with_that_of_the_changes(
    log: MadeLog,
) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    table.add_column("added")
    log.commit(table, table.insert(20, "x", 1, "new"))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows


def test_table_that_is_not_captured_any_more_does_not_hold_up_the_others(log: MadeLog) -> None:
    table, other, sink = filled(Table()), filled(Table(ITEMS)), WatchedSink()
    base, _ = [log.base_of(each) for each in (table, other)]
    Run(log.store, sink).to_end()
    delivered = rows_of(sink)
    key, second, *rest = table.relation.columns
    table.alter(replace(table.relation, columns=(key, replace(second, name="renamed"), *rest)))
    log.commit(table, table.insert(20, "x", 1))
    log.commit(other, other.insert(20, "y"))
    with pytest.raises(SchemaError):
        Run(log.store, sink).to_end()
    _drop_base(log, base)
    assert Run(log.store, sink).to_end() == log.end
    assert rows_of(sink, "public.items") == other.rows
    assert rows_of(sink) == delivered


class _Life:
    """Two tables, filled before the log began, whose bases come at different times."""

    def __init__(self) -> None:
        self.log = MadeLog(MemoryStore(), has_bases=False)
        self.orders, self.items = filled(Table()), filled(Table(ITEMS))
        self._keys = count(100)

    def change(self, table: Table) -> None:
        key, width = next(self._keys), len(table.relation.columns)
        old, moved, gone = sorted(table.by_key, key=repr)[:3]
        row = (f"new {key}", 2)[: width - 1]
        inserted = table.insert(key, *row)
        changes = [inserted, table.update(old, old, *row), table.update(moved, -key, *row)]
        self.log.commit(table, *changes, table.delete(gone))

    def steps(self) -> Iterator[None]:
        """What happens, one thing at a time."""
        for step in range(9):
            self.change(self.orders if step % 2 else self.items)
            if step in (1, 5):
                self.log.base_of(self.orders)
            if step == 3:
                self.log.base_of(self.items)
            yield

    def check(self, sink: WatchedSink) -> None:
        sink.check_numbers()
        assert rows_of(sink) == self.orders.rows
        assert rows_of(sink, "public.items") == self.items.rows


@pytest.mark.slow
def test_f021_kill_before_any_effect_on_the_record_loses_and_doubles_nothing() -> None:
    for effect in count():
        life, sink = _Life(), WatchedSink()
        steps = life.steps()
        try:
            for _ in steps:
                Run(dying(life.log.store, effect), sink, changes_max=3, log=life.log.store).to_end()
        except Killed:
            for _ in steps:
                pass
            Run(life.log.store, sink, changes_max=5).to_end()
            life.check(sink)
            continue
        break
    assert effect > 8, "the record was hardly touched"


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 12), min_size=9, max_size=9))
def test_f024_any_row_of_deaths_and_bases_ends_with_what_the_source_has(deaths: list[int]) -> None:
    life, sink = _Life(), WatchedSink()
    for effect, _ in zip(deaths, life.steps(), strict=True):
        try:
            Run(dying(life.log.store, effect), sink, changes_max=4, log=life.log.store).to_end()
        except Killed:
            continue
    Run(life.log.store, sink).to_end()
    life.check(sink)


class _DiesInLoad(WatchedSink):
    """Dies in its first load, with it applied or not."""

    def __init__(self, *, is_applied: bool) -> None:
        super().__init__()
        self._is_applied = is_applied

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        if not self.loads and not self._is_applied:
            self.loads.append(load)
            raise Killed
        super().load(load, rows)
        if len(self.loads) == 1:
            raise Killed


@pytest.mark.parametrize("is_applied", [True, False])
def test_unfinished_load_comes_again_under_its_number(log: MadeLog, is_applied: bool) -> None:
    table, sink = filled(Table()), _DiesInLoad(is_applied=is_applied)
    log.base_of(table)
    with pytest.raises(Killed):
        Run(log.store, sink)
    log.insert(table, 20)
    Run(log.store, sink).to_end()
    assert [load.sequence for load in sink.loads] == [1, 1]
    assert rows_of(sink) == table.rows


@pytest.mark.parametrize("is_applied", [True, False])
def test_unfinished_load_of_a_base_that_is_gone_gives_way_to_the_newer(
    log: MadeLog, is_applied: bool
) -> None:
    table, sink = filled(Table()), _DiesInLoad(is_applied=is_applied)
    old = log.base_of(table)
    with pytest.raises(Killed):
        Run(log.store, sink)
    log.commit(table, table.delete(1))
    log.base_of(table, folded_from=old.position)
    _drop_base(log, old)
    Run(log.store, sink).to_end()
    assert [load.sequence for load in sink.loads] == [1, 2]
    assert rows_of(sink) == table.rows


def test_base_that_vanishes_while_it_is_read_is_tried_again(log: MadeLog) -> None:
    table = filled(Table())
    base = log.base_of(table)
    _drop_base(log, base)
    with pytest.raises(TailraceError, match="is gone") as caught:
        list(base_rows(log.store, base, EVERYTHING))
    assert caught.value.retry


def test_f093_base_that_is_folded_while_another_is_loaded_is_not_read_from_where_it_stood(
    log: MadeLog,
) -> None:
    """Retention keeps what follows the newest bases, and by then has dropped the rest."""
    orders, items = filled(Table()), filled(Table(ITEMS))
    log.base_of(orders)
    for key in range(20, 24):
        log.insert(orders, key)
    log.base_of(items)
    Run(log.store, WatchedSink(), patterns=["public.others"]).to_end()

    class Slow(WatchedSink):
        def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
            super().load(load, rows)
            if load.relation == items.relation:
                log.base_of(orders, folded_from=newest_bases(log.store)[16_400].generation)
                log.insert(orders, 30)
                log.insert(orders, 31)
                retain(log.store, RetentionPolicy(bytes_max=0), now_s=0.0)

    sink = Slow()
    assert Run(log.store, sink).to_end() == log.end
    assert rows_of(sink) == orders.rows


def test_f093_base_that_is_folded_just_before_it_is_loaded_is_still_followed(log: MadeLog) -> None:
    """From the look at the newest bases on, retention must know of the stream."""
    table = filled(Table())
    base = log.base_of(table)
    log.insert(table, 20)
    log.insert(table, 21)
    Run(log.store, WatchedSink(), patterns=["public.others"]).to_end()

    class Slow(WatchedSink):
        def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
            log.base_of(table, folded_from=base.generation)
            log.insert(table, 30)
            log.insert(table, 31)
            retain(log.store, RetentionPolicy(bytes_max=0), now_s=0.0)
            return super().committed(stream, relations)

    sink = Slow()
    assert Run(log.store, sink).to_end() == log.end
    assert [load.position for load in sink.loads] == [base.position]
    assert rows_of(sink) == table.rows


def test_rows_of_a_base_come_in_order_and_in_pieces(log: MadeLog) -> None:
    table = filled(Table(), rows=30)
    base = log.base_of(table)
    pieces = list(base_rows(log.store, base, EVERYTHING))
    assert [len(piece) for piece in pieces] == [4, 4, 4, 4, 4, 4, 4, 2]
    ordinals = pa.concat_tables(pieces)["_ordinal"].to_pylist()
    assert ordinals == list(range(30))


def test_two_pipelines_cannot_both_load(log: MadeLog) -> None:
    class Beaten(WatchedSink):
        was_asked = False

        def committed(self, stream: str, relations: Iterable[object]) -> dict[str, int]:
            if not self.was_asked:
                self.was_asked = True
                Run(log.store, WatchedSink()).to_end()
            return {}

    log.base_of(filled(Table()))
    with pytest.raises(LogFenced, match="another pipeline"):
        Run(log.store, Beaten())


def test_load_is_not_put_over_what_another_log_has_left(log: MadeLog) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    Run(log.store, sink).to_end()
    other = MadeLog(MemoryStore(), has_bases=False)
    other.base_of(filled(Table(), first=100))
    with pytest.raises(SinkError, match="from another log"):
        Run(other.store, sink)
    assert rows_of(sink) == table.rows


def test_load_is_not_put_over_what_another_stream_delivers(log: MadeLog) -> None:
    """Two streams to one place; the first goes on as if nothing had happened to its rows."""
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    Run(log.store, sink).to_end()
    some = Selection.of(columns=None, where="id < 3")
    with pytest.raises(SinkError, match=f"stream {STREAM} delivers public.orders to the same") as e:
        Run(log.store, sink, stream="second", selection=some)
    assert "tailrace stream rm" in e.value.hint and rows_of(sink) == table.rows
    # Another place is fine, and so is this one when the other stream is over.
    Run(log.store, WatchedSink(), stream="third").to_end()
    remove_stream(log.store, STREAM)
    Run(log.store, sink, stream="second").to_end()
    assert rows_of(sink) == table.rows


def test_two_streams_that_load_the_same_place_at_once_both_say_so(log: MadeLog) -> None:
    class Shared(WatchedSink):
        """The other one begins its load when this one has looked who else is there."""

        has_begun = False

        def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
            if not self.has_begun:
                self.has_begun = True
                Run(log.store, self, stream="second").to_end()
            super().load(load, rows)

    log.base_of(filled(Table()))
    sink = Shared()
    with pytest.raises(SinkError, match="stream second delivers"):
        Run(log.store, sink)
    with pytest.raises(SinkError, match="stream second delivers"):
        Run(log.store, sink)


def test_load_that_is_told_to_stop_leaves_the_target_as_it_was(log: MadeLog) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    run = Run(log.store, sink)
    before: list[Row] = rows_of(sink)
    log.commit(table, table.delete(1))
    log.base_of(table)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        load_due(run.delivery, log.store, ["public.*"], EVERYTHING, unfinished=None, stop=stop)
    assert rows_of(sink) == before
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows


def test_reset_takes_up_every_table_from_its_newest_base(log: MadeLog) -> None:
    table, sink = filled(Table()), WatchedSink()
    log.base_of(table)
    log.insert(table, 20)
    Run(log.store, sink).to_end()
    StreamRecord(log.store, STREAM).forget()
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    assert [load.sequence for load in sink.loads] == [1, 4]
