"""A stream's record: one range for a number, one run for a stream, and never back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LogFenced, SegmentCorrupt
from tailrace.log import layout
from tailrace.log.epochs import take_epoch
from tailrace.log.retention import reader_positions
from tailrace.model import Lsn, Offset
from tailrace.storage import MemoryStore, Store
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord
from tailrace.streams.removing import remove_stream
from tailrace.streams.taken import Taken
from tests.log.faulty_store import WatchedStore, forgetful
from tests.log.making import BEGINNING, begin
from tests.streams.by_hand import STREAM

FOLDER = f"{layout.STREAMS}{STREAM}/"


def _batch(sequence: int, *, writer: str = "a", size: int = 0x100) -> BatchRecord:
    """Batch 1 begins where the log does, and each follows the one before."""
    after, upto = (Offset.whole(Lsn(0x1000 + at * size)) for at in (sequence - 1, sequence))
    return BatchRecord(sequence, after, upto, writer)


def _record(store: Store) -> StreamRecord:
    """A stream that has begun."""
    record = StreamRecord(store, STREAM)
    record.begin(BEGINNING, writer="a")
    return record


def _keys(store: Store) -> list[str]:
    return [entry.key.removeprefix(FOLDER) for entry in store.list(FOLDER)]


offsets = st.builds(Offset, st.integers(0, 1 << 62).map(Lsn), st.integers(0, 1 << 62))
lsns = st.integers(0, 1 << 62).map(Lsn)
tables = st.builds(Taken, st.integers(0, 1 << 32), st.text(), st.text(), lsns, offsets)


@given(
    st.builds(
        BatchRecord,
        st.integers(0, 10**15),
        offsets,
        offsets,
        st.text(),
        st.lists(tables, max_size=3).map(tuple),
        st.none() | tables,
        st.text(),
    )
)
def test_record_reads_as_it_was_written(batch: BatchRecord) -> None:
    key = f"{FOLDER}batches/{batch.sequence:016d}.json"
    assert BatchRecord.from_json(batch.to_json(), key=key) == batch


def test_start_is_resolved_once() -> None:
    store = MemoryStore()
    record = StreamRecord(store, STREAM)
    assert record.newest() is None
    first = record.begin(BEGINNING, writer="a")
    assert first.is_start and record.is_done(first)
    later = Offset.whole(Lsn(0x9999))
    assert StreamRecord(store, STREAM).begin(later, writer="b") == first
    assert record.newest() == first


def test_stream_is_a_registered_reader_from_its_start_on() -> None:
    store = MemoryStore()
    record = _record(store)
    assert reader_positions(store) == {STREAM: BEGINNING.commit_lsn}
    batch = _batch(1)
    record.fix(batch)
    assert reader_positions(store) == {STREAM: BEGINNING.commit_lsn}, "the sink has nothing yet"
    record.finish(batch)
    assert reader_positions(store) == {STREAM: batch.upto.commit_lsn}


def test_transaction_that_is_delivered_in_part_is_needed_again() -> None:
    store = MemoryStore()
    record = _record(store)
    inside = replace(_batch(1), upto=Offset(Lsn(0x1100), 5))
    record.fix(inside)
    record.finish(inside)
    assert reader_positions(store) == {STREAM: Lsn(0x10FF)}


def test_batch_is_done_only_when_it_was_finished() -> None:
    record = _record(MemoryStore())
    record.fix(_batch(1))
    assert record.newest() == _batch(1)
    assert not record.is_done(_batch(1))
    record.finish(_batch(1))
    record.finish(_batch(1))
    assert record.is_done(_batch(1))


def test_number_that_another_run_has_taken_is_fenced() -> None:
    store = MemoryStore()
    first, second = _record(store), StreamRecord(store, STREAM)
    first.fix(_batch(1))
    for rival in (_batch(1, writer="b"), _batch(1, writer="b", size=0x200)):
        with pytest.raises(LogFenced, match="another pipeline delivers stream lake"):
            second.fix(rival)
    assert first.newest() == _batch(1)


def test_put_whose_answer_was_lost_is_our_own() -> None:
    store = MemoryStore()
    _record(store)
    record = StreamRecord(forgetful(store), STREAM)
    with pytest.raises(Exception, match="the answer was lost"):
        record.fix(_batch(1))
    record.fix(_batch(1))
    assert record.newest() == _batch(1)


def test_f082_run_that_wakes_up_late_is_fenced_although_its_number_is_free_again() -> None:
    store = MemoryStore()
    record, sleeper = _record(store), StreamRecord(store, STREAM)
    for number in range(1, 6):
        record.fix(_batch(number))
        record.finish(_batch(number))
    before = _keys(store)
    with pytest.raises(LogFenced):
        sleeper.fix(_batch(1, writer="sleeper"))
    assert _keys(store) == before
    record.fix(_batch(6))


def test_old_batches_are_deleted_also_those_of_a_run_that_died_before_it_could() -> None:
    store = MemoryStore()
    record = _record(store)
    for number in range(1, 4):
        record.fix(_batch(number))
    for number in range(1, 4):
        store.put_new(f"{FOLDER}done/{number:016d}", b"")
    record.fix(_batch(4))
    record.finish(_batch(4))
    numbers = [f"{3:016d}", f"{4:016d}"]
    assert _keys(store) == [
        *(f"batches/{number}.json" for number in numbers),
        *(f"done/{number}" for number in numbers),
    ]


def test_newest_that_is_outdone_while_it_is_read_is_looked_for_again() -> None:
    store = MemoryStore()
    record = _record(store)
    record.fix(_batch(1))

    def outdo(what: str, key: str) -> None:
        if what == "get" and key.endswith(f"{1:016d}.json"):
            for number in (2, 3, 4):
                record.fix(_batch(number))
                record.finish(_batch(number))

    assert StreamRecord(WatchedStore(store, before=outdo), STREAM).newest() == _batch(4)


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"after": 1}', b"\0" * 100])
def test_damaged_record_is_told_and_reset_goes_past_it(damage: bytes) -> None:
    store = MemoryStore()
    begin(store)
    record = _record(store)
    store.put_new(f"{FOLDER}batches/{1:016d}.json", damage)
    with pytest.raises(SegmentCorrupt, match="cannot be read") as caught:
        record.newest()
    assert "reset the stream" in caught.value.hint
    record.forget()
    assert record.newest() == BatchRecord.start(2, BEGINNING, "reset")


def test_reset_starts_over_under_new_numbers() -> None:
    store = MemoryStore()
    begin(store)
    record = _record(store)
    for number in (1, 2):
        record.fix(_batch(number))
        record.finish(_batch(number))
    record.forget()
    newest = record.newest()
    assert newest is not None and record.is_done(newest)
    assert (newest.sequence, newest.upto, newest.outcome) == (3, BEGINNING, ())
    assert reader_positions(store) == {STREAM: BEGINNING.commit_lsn}


def test_reset_fences_whoever_delivers() -> None:
    store = MemoryStore()
    begin(store)
    running = _record(store)
    StreamRecord(store, STREAM).forget()
    with pytest.raises(LogFenced, match="or it was reset"):
        running.fix(_batch(1))


def test_reset_of_a_stream_that_never_began_is_nothing() -> None:
    store = MemoryStore()
    StreamRecord(store, STREAM).forget()
    assert store.list("") == []


def test_record_of_a_killed_run_is_made_durable_before_it_counts() -> None:
    synced: list[str] = []

    class Synced(WatchedStore):
        def sync(self, prefix: str) -> None:
            synced.append(prefix)

    store = MemoryStore()
    _record(store)
    StreamRecord(Synced(store), STREAM).newest()
    assert synced == [f"{FOLDER}batches/"]


def test_a_removed_stream_fences_its_pipeline_and_holds_nothing_back() -> None:
    store = MemoryStore()
    begin(store)
    record = _record(store)
    record.fix(_batch(1))
    record.finish(_batch(1))
    StreamRecord(store, STREAM).remove()
    assert reader_positions(store) == {}
    with pytest.raises(LogFenced):
        record.fix(_batch(2))


def test_f082_a_batch_that_ends_after_its_stream_was_removed_holds_nothing_back() -> None:
    store = MemoryStore()
    begin(store)
    _record(store)
    record = StreamRecord(store, STREAM, take_epoch(store, STREAM, node="a"))
    record.fix(_batch(1))
    remove_stream(store, STREAM)
    with pytest.raises(LogFenced):
        record.finish(_batch(1))
    assert reader_positions(store) == {}
