"""A folded base is the table, to the byte, whatever happened to it and whoever died meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.compaction import Compactor, Outcome
from tailrace.compaction import rewriting as rewriting_module
from tailrace.compaction.texts import as_texts, to_lines
from tailrace.decode import decode_base
from tailrace.log import Base, BaseOrigin, Writer, recover_tip
from tailrace.log.bases import newest_bases, newest_positions, read_base_part
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.log.wanted import WantedBase, want_base, wanted_bases
from tailrace.model import Column, Lsn, PgType, Relation, ReplicaIdentity
from tailrace.storage import MemoryStore, Store, open_store
from tests.compaction.process import here, main
from tests.decode import wire
from tests.decode.copy_text import copy_line, copy_lines
from tests.log.faulty_store import Killed, dying
from tests.log.making import shape
from tests.nursery import die
from tests.spark.made_log import ITEMS, LATER_S, MadeLog, Table, merge_all
from tests.streams.by_hand import Run, WatchedSink, rows_of


def compact(log: MadeLog, store: Store | None = None, **told: int) -> list[Outcome]:
    return Compactor(store or log.store, here, **told).compact()


def base_of(log: MadeLog, oid: int = 16_400) -> Base:
    return newest_bases(log.store)[oid]


def lines_of(log: MadeLog, base: Base) -> list[bytes]:
    found = [read_base_part(log.store, part).to_pylist() for part in base.parts]
    return sorted(line for part in found for line in part if line is not None)


def expected(table: Table) -> list[bytes]:
    return sorted(copy_line([v if v is None else str(v) for v in row]) for row in table.rows)


@pytest.fixture
def log() -> MadeLog:
    return MadeLog(MemoryStore(), has_bases=False)


def filled(rows: int = 10) -> Table:
    table = Table()
    table.by_key = {key: (key, f"old\t{key}\\", 1) for key in range(1, rows + 1)}
    return table


def test_base_and_changes_become_a_newer_base(log: MadeLog) -> None:
    table = filled()
    old = log.base_of(table)
    log.insert(table, 20, 3)
    log.commit(table, table.delete(3), table.update(4, 4, "a\\b\nc", None))
    log.commit(table, table.update(5, 50, "moved", None), table.delete(21))
    (outcome,) = compact(log)
    newer = base_of(log)
    assert outcome == Outcome("public.orders", log.wal.end, 7)
    assert (newer.position, newer.origin) == (log.wal.end, BaseOrigin.COMPACTION)
    assert newer.generation == old.position
    assert lines_of(log, newer) == expected(table)


def test_stream_from_the_folded_base_equals_the_source(log: MadeLog) -> None:
    table, sink = filled(), WatchedSink()
    log.base_of(table)
    log.commit(table, table.delete(3), table.update(4, 4, "new", None))
    compact(log)
    log.commit(table, table.delete(5))
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    assert len(sink.given) == 1


def test_table_without_changes_moves_on_with_the_same_parts(log: MadeLog) -> None:
    table, other = filled(), Table(ITEMS)
    old = log.base_of(table)
    log.base_of(other)
    log.insert(other, 1)
    compact(log)
    newer = base_of(log)
    assert newer.position == log.wal.end
    assert newer.parts == old.parts


def test_part_that_no_change_touches_is_not_written_again(log: MadeLog) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting_module, "PART_BYTES", 30)
        table = filled()
        old = log.base_of(table)
        log.commit(table, table.delete(1))
        compact(log)
    newer = base_of(log)
    assert old.parts[0] not in newer.parts
    assert newer.parts[1:] == old.parts[1:]
    assert lines_of(log, newer) == expected(table)


def test_small_parts_are_put_together(log: MadeLog) -> None:
    table = filled(30)
    assert len(log.base_of(table).parts) == 8
    log.insert(table, 50)
    compact(log)
    assert len(base_of(log).parts) == 2, "the old rows, and the new"
    assert lines_of(log, base_of(log)) == expected(table)


def test_f049_value_that_was_not_sent_is_taken_from_the_base(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    oid = table.relation.oid
    log.commit(table, wire.update(oid, ["2", wire.UNSENT, "7"]))
    log.commit(table, wire.update(oid, ["40", wire.UNSENT, "8"], key=["4", None, None]))
    log.commit(table, wire.update(oid, ["41", wire.UNSENT, "9"], key=["40", None, None]))
    log.commit(table, table.delete(9))
    compact(log)
    del table.by_key[4]
    table.by_key[2] = (2, "old\t2\\", 7)
    table.by_key[41] = (41, "old\t4\\", 9)
    assert lines_of(log, base_of(log)) == expected(table)


def test_f054_truncate_empties_the_base(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    log.commit(table, table.truncate(), table.insert(7, "after", None))
    compact(log)
    assert lines_of(log, base_of(log)) == expected(table)
    log.commit(table, table.truncate())
    compact(log)
    assert base_of(log).parts == ()


def test_changes_are_folded_in_steps(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    for key in range(20, 40):
        log.insert(table, key)
    compact(log, step_bytes=100)
    assert len([1 for entry in log.store.list("bases/") if "base.json" in entry.key]) > 3
    assert lines_of(log, base_of(log)) == expected(table)


def test_position_inside_a_merged_segment_is_folded_from_there(log: MadeLog) -> None:
    table = filled()
    log.insert(table, 20)
    log.base_of(table)
    log.insert(table, 21)
    merge_all(log)
    compact(log)
    assert lines_of(log, base_of(log)) == expected(table)


def test_f058_column_behind_the_others_is_null_in_the_rows_of_the_base(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    log.insert(table, 20)
    table.add_column("added")
    log.commit(table, table.update(3, 3, "wide", None, "new"))
    (outcome,) = compact(log)
    assert not outcome.reason
    assert base_of(log).relation == table.relation
    assert lines_of(log, base_of(log)) == expected(table)


def test_f058_other_change_of_the_columns_ends_the_fold_and_asks_for_a_base(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    end = log.insert(table, 20)
    before = expected(table)
    columns = (table.relation.columns[0], Column("renamed", PgType.TEXT, -1, False))
    table.alter(replace(table.relation, columns=columns))
    log.commit(table, wire.insert(table.relation.oid, ["99", "x"]))
    (outcome,) = compact(log)
    assert "its name, columns or key changed" in outcome.reason
    assert end.commit_lsn <= outcome.position < log.wal.end
    assert lines_of(log, base_of(log)) == before
    assert wanted_bases(log.store, {table.relation.oid: outcome.position})
    (again,) = compact(log)
    assert "a new base is asked for" in again.reason


def test_another_key_ends_the_fold_and_asks_for_a_base(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    log.commit(table, table.update(2, 2, "moved", 1))
    before = expected(table)
    id_, note, amount = table.relation.columns
    columns = (replace(id_, in_identity=False), replace(note, in_identity=True), amount)
    table.alter(replace(table.relation, columns=columns, key=("note",)))
    log.commit(table, table.insert(20, "new", 1))
    (outcome,) = compact(log)
    assert "key changed" in outcome.reason
    assert lines_of(log, base_of(log)) == before


def test_renamed_table_is_folded_up_to_there(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    end = log.insert(table, 20)
    before = expected(table)
    table.alter(replace(table.relation, name="renamed"))
    log.insert(table, 21)
    (outcome,) = compact(log)
    assert end.commit_lsn <= outcome.position < log.wal.end
    assert "its name" in outcome.reason
    assert lines_of(log, base_of(log)) == before


def test_table_for_which_a_base_is_asked_for_is_left_alone(log: MadeLog) -> None:
    table = filled()
    base = log.base_of(table)
    log.insert(table, 20)
    want_base(log.store, WantedBase(table.relation.oid, log.wal.end, "a partition was attached"))
    (outcome,) = compact(log)
    assert outcome.position == base.position
    assert "a partition was attached" in outcome.reason


@pytest.mark.parametrize("moment", ["compaction.before_base", "compaction.after_base"])
def test_table_that_is_read_anew_while_it_is_folded_is_not_hidden_by_the_fold(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table = filled()
    log.base_of(table)
    log.commit(table, table.delete(1))
    read_at = Lsn(log.wal.end)
    rows = list(table.rows[1:])  # what Postgres does not stream
    log.commit(table, table.delete(2))

    def read_anew(name: str) -> None:
        if name == moment:
            log.put_base(table.relation, rows, position=read_at)

    monkeypatch.setattr("tailrace.compaction.compactor.failpoint", read_anew)
    compact(log)
    newest = base_of(log)
    counts = newest.generation == read_at
    asked = wanted_bases(log.store, {table.relation.oid: newest.position})
    assert counts is (moment == "compaction.before_base")
    assert bool(asked) is not counts


def _retain(log: MadeLog, tables: set[int] | None = None) -> Lsn:
    return retain(log.store, RetentionPolicy(age_s=0), now_s=LATER_S, tables=tables)


def test_f093_segments_stay_until_the_newest_base_is_past_them(log: MadeLog) -> None:
    table = filled()
    base = log.base_of(table)
    for key in range(20, 24):
        log.insert(table, key)
    assert _retain(log) <= base.position
    compact(log)
    log.commit(table, table.delete(1))
    log.commit(table, table.delete(2))
    assert base.position < _retain(log) <= base_of(log).position
    sink = WatchedSink()
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows


def test_f014_a_base_that_a_hard_limit_has_cut_off_is_to_be_read_anew(log: MadeLog) -> None:
    table, other = filled(), Table(ITEMS)
    base = log.base_of(table)
    log.insert(table, 100)
    log.base_of(other)
    log.insert(table, 101)
    policy = RetentionPolicy(hard_bytes_max=0)
    start = retain(log.store, policy, now_s=time.time())
    assert start > base.position
    newest = newest_positions(log.store)
    assert [*wanted_bases(log.store, newest)] == [table.relation.oid]
    log.base_of(table)
    assert not wanted_bases(log.store, newest_positions(log.store))


def test_base_of_a_table_that_is_gone_keeps_nothing(log: MadeLog) -> None:
    table = filled()
    log.base_of(table)
    for key in range(20, 24):
        log.insert(table, key)
    assert _retain(log, tables=set()) > log.begin.commit_lsn
    assert not log.store.list("bases/")


def test_base_of_a_table_that_is_gone_goes_however_often_bases_are_folded(log: MadeLog) -> None:
    table, other = filled(), Table(ITEMS)
    log.base_of(table)
    log.base_of(other)
    captured = {other.relation.oid}
    now_s = time.time()
    retain(log.store, RetentionPolicy(), now_s=now_s, tables=captured)
    log.insert(other, 1)
    assert [outcome.table for outcome in compact(log)] == ["public.items"]
    due = Compactor(log.store, here).due(interval_s=0, now_s=LATER_S)
    assert due == {"public.items"}
    # Back in time: it is folded as any other.
    retain(log.store, RetentionPolicy(), now_s=now_s, tables={table.relation.oid, *captured})
    assert base_of(log).position < log.wal.end
    assert len(compact(log)) == 2
    assert base_of(log).position == log.wal.end
    retain(log.store, RetentionPolicy(), now_s=now_s, tables=captured)
    compact(log)
    _retain(log, tables=captured)
    assert set(newest_bases(log.store)) == captured
    assert not log.store.list("gone/")


def test_outdone_base_goes_but_for_the_parts_that_the_newer_names(log: MadeLog) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting_module, "PART_BYTES", 30)
        table = filled()
        old = log.base_of(table)
        log.commit(table, table.delete(1))
        compact(log)
    retain(log.store, RetentionPolicy(), now_s=time.time())
    assert log.store.list(old.key.removesuffix("base.json")), "it may still be read"
    _retain(log)
    left = [entry.key for entry in log.store.list("bases/")]
    assert old.key not in left and old.parts[0].key not in left
    assert lines_of(log, base_of(log)) == expected(table)


def test_base_that_was_never_completed_goes_in_the_end(log: MadeLog) -> None:
    base = log.base_of(filled())
    log.store.delete([base.key])
    retain(log.store, RetentionPolicy(), now_s=time.time())
    assert log.store.list("bases/"), "it may be under way"
    _retain(log)
    assert not log.store.list("bases/")


def _keyless() -> Table:
    columns = tuple(replace(column, in_identity=False) for column in ITEMS.columns)
    relation = replace(ITEMS, columns=columns, key=(), identity=ReplicaIdentity.NOTHING)
    return Table(relation)


def test_table_without_a_key_grows(log: MadeLog) -> None:
    table = _keyless()
    table.by_key = {1: (1, "a")}
    log.base_of(table)
    log.insert(table, 2, 2)
    compact(log)
    assert lines_of(log, base_of(log, ITEMS.oid)) == expected(table)


def test_update_of_a_table_without_a_key_cannot_be_folded(log: MadeLog) -> None:
    table = _keyless()
    log.base_of(table)
    log.insert(table, 2)
    log.commit(table, wire.delete(ITEMS.oid, old=["2", "x"]))
    (outcome,) = compact(log)
    assert "no key" in outcome.reason


def _described_as_keyless(relations: Sequence[Relation]) -> list[Relation]:
    return [replace(relation, is_keyless=True) for relation in relations]


def test_f052_equal_rows_of_a_table_without_a_key_stay_as_many(log: MadeLog) -> None:
    tip = recover_tip(log.store)
    assert tip is not None
    log.writer = Writer(log.store, tip, writer_id="writer", describe=_described_as_keyless)
    columns = tuple(replace(column, in_identity=True) for column in ITEMS.columns)
    whole = replace(ITEMS, columns=columns, key=ITEMS.column_names, is_keyless=True)
    table = Table(replace(whole, identity=ReplicaIdentity.FULL))
    log.base_of(table)
    for _ in range(2):
        log.commit(table, wire.insert(ITEMS.oid, ["1", "same"]))
    compact(log)
    assert lines_of(log, base_of(log, ITEMS.oid)) == [copy_line(["1", "same"])] * 2
    log.commit(table, wire.delete(ITEMS.oid, old=["1", "same"]))
    (outcome,) = compact(log)
    assert "no key" in outcome.reason


def _live(log: MadeLog, table: Table, random: Random) -> None:
    """One transaction of random changes."""
    frames = []
    for _ in range(random.randint(1, 5)):
        keys = list(table.by_key)
        new = max((int(str(key)) for key in keys), default=0) + 1
        kind = random.choice(["insert", "update", "move", "delete", "kept"])
        if kind == "insert" or not keys:
            frames.append(table.insert(new, f"\t{new}", 1))
            continue
        old = random.choice(keys)
        match kind:
            case "update":
                frames.append(table.update(old, old, "\\", None))
            case "move":
                frames.append(table.update(old, new, "m", 2))
            case "delete":
                frames.append(table.delete(old))
            case _:
                kept = table.by_key[old][1]
                table.by_key[old] = (old, kept, 9)
                frames.append(wire.update(table.relation.oid, [str(old), wire.UNSENT, "9"]))
    log.commit(table, *frames)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(20, 400))
def test_any_life_folds_to_the_table(seed: int, step_bytes: int) -> None:
    random, log, table = Random(seed), MadeLog(MemoryStore(), has_bases=False), filled()
    log.base_of(table)
    for _ in range(6):
        _live(log, table, random)
        if random.random() < 0.4:
            compact(log, step_bytes=step_bytes)
    compact(log, step_bytes=step_bytes)
    assert lines_of(log, base_of(log)) == expected(table)


def test_f030_death_before_any_effect_leaves_a_log_that_reads_the_same() -> None:
    for effect in count():
        log, table = MadeLog(MemoryStore(), has_bases=False), filled()
        log.base_of(table)
        for number in range(3):
            _live(log, table, Random(number))
        try:
            compact(log, dying(log.store, effect), step_bytes=150)
        except Killed:
            sink = WatchedSink()
            Run(log.store, sink).to_end()
            assert rows_of(sink) == table.rows
            compact(log)
            assert lines_of(log, base_of(log)) == expected(table)
            continue
        break
    assert effect > 3


POINTS = [
    *("compaction.before_part", "compaction.after_part"),
    *("compaction.before_base", "compaction.after_base"),
]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_f081_kill_at_each_step_of_a_compaction(tmp_path: Path, point: str) -> None:
    log, table = MadeLog(open_store(tmp_path.as_uri()), has_bases=False), filled()
    log.base_of(table)
    for number in range(3):
        _live(log, table, Random(number))
    die(main, log.store.url, failpoint=point, output=tmp_path / "output.txt")
    sink = WatchedSink()
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    compact(log)
    assert lines_of(log, base_of(log)) == expected(table)


_BYTES = st.binary(max_size=8)


@settings(deadline=None)
@given(st.lists(st.tuples(_BYTES, st.none() | _BYTES), min_size=1, max_size=6))
def test_f066_texts_become_the_lines_that_they_come_from(rows: list[tuple[bytes, bytes]]) -> None:
    relation = shape(16_400, "id", "note")
    lines = copy_lines(rows)
    (piece,) = decode_base(lines, as_texts(relation), position=Lsn(1), taken_ts_us=0)
    assert to_lines(piece.rows, relation.column_names).to_pylist() == lines.to_pylist()


def test_texts_of_a_typed_table_are_not_read_as_values() -> None:
    relation = Relation(
        1, "public", "t", ReplicaIdentity.DEFAULT, (Column("n", PgType.NUMERIC, -1, True),), ("n",)
    )
    lines = copy_lines([["1.50"], ["NaN"], ["1e3"]])
    (piece,) = decode_base(lines, as_texts(relation), position=Lsn(1), taken_ts_us=0)
    assert to_lines(piece.rows, ["n"]).to_pylist() == [b"1.50", b"NaN", b"1e3"]
