"""From times to positions: clocks may jump, the log's order does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.log import Reader, layout
from tailrace.log.plan import (
    offset_at_time,
    offset_before_time,
)
from tailrace.model import ORIGIN, Offset
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.faulty_store import WatchedStore
from tests.log.making import (
    BEGINNING,
    START,
    Clock,
    Wal,
    begin_writer,
    merge_all,
    put_in_parts,
    read,
    shape,
)

T = shape()


def _timed(store: Store, times: list[int]) -> Wal:
    to, wal = begin_writer(store), Wal()
    for number in range(0, len(times), 2):
        to.append(
            Frames.concat(
                [
                    wal.transaction(wire.relation(T), wal.row(T), ts_us=time_us)
                    for time_us in times[number : number + 2]
                ]
            )
        )
    return wal


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(-1, 10), st.booleans())
def test_f094_times_choose_positions_and_never_order(
    times: list[int], time_us: int, is_merged: bool
) -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _timed(store, times)
    if is_merged:
        merge_all(store, clock)
    asked = time_us + POSTGRES_EPOCH_US
    ends = [START + 100 * (number + 1) for number in range(len(times))]
    late = [end for end, each in zip(ends, times, strict=True) if each >= time_us]
    early = [end for end, each in zip(ends, times, strict=True) if each <= time_us]
    reader = Reader(store)
    first = Offset.whole(late[0] - 1) if late else Offset.whole(wal.end)
    assert offset_before_time(reader, asked) == first
    last = Offset.whole(early[-1]) if early else BEGINNING
    assert offset_at_time(reader, asked) == last
    assert read(store) == wal.changes


def test_a_time_before_or_after_everything(store: Store) -> None:
    wal = _timed(store, [5, 6])
    reader = Reader(store)
    late = POSTGRES_EPOCH_US + 100
    assert offset_before_time(reader, 0) == Offset.whole(START + 99)
    assert offset_at_time(reader, 0) == BEGINNING
    assert offset_before_time(reader, late) == offset_at_time(reader, late)
    assert offset_at_time(reader, late) == Offset.whole(wal.end)


def test_the_time_of_a_huge_transaction_is_that_of_its_commit(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    frames = wal.transaction(wire.relation(T), wal.row(T), wal.row(T), ts_us=7)
    put_in_parts(to, frames, 3)
    assert offset_at_time(Reader(store), POSTGRES_EPOCH_US + 7) == Offset.whole(wal.end)
    assert offset_before_time(Reader(store), POSTGRES_EPOCH_US + 7) == Offset.whole(wal.end - 1)


@pytest.mark.parametrize("look", [offset_at_time, offset_before_time])
def test_only_the_segment_that_matters_is_read_whole(
    look: Callable[[Reader, int], Offset],
) -> None:
    store = MemoryStore()
    _timed(store, list(range(20)))
    reader = Reader(store)
    list(reader.walk(ORIGIN))
    reads: list[str] = []

    def note(what: str, key: str) -> None:
        if what == "get" and key.startswith(layout.SEGMENTS):
            reads.append(key)

    watched = Reader(WatchedStore(store, before=note))
    look(watched, POSTGRES_EPOCH_US + 9)
    whole = [key for key in reads if reads.count(key) > 1]
    assert len(set(whole)) == 1
