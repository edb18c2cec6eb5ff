"""What a segment's note says holds at the end of the log, whatever becomes of the segment."""

from __future__ import annotations

import pytest

from tailrace.log import Reader, Writer, recover_tip
from tailrace.log.header import DRAINED, Note
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.log.verify import verify
from tailrace.model import Offset
from tailrace.storage import MemoryStore
from tests.log.making import NOTE, Clock, Wal, begin_writer, put_in_parts, shape

T = shape()
POLICY = MergePolicy(target_bytes=1 << 20, segment_count_min=2, grace_s=10.0)


class Noted:
    """A log on a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.writer: Writer = begin_writer(self.store)
        self.wal = Wal()

    def append(self, note: Note | None) -> None:
        self.writer.append(self.wal.rows(T), note)

    def merge(self) -> None:
        merger = Merger(self.store, writer_id="merger", policy=POLICY)
        for _ in range(4):
            self.clock.now_s += 20.0
            merger.step(self.clock.now_s)

    def notes(self) -> list[Note | None]:
        """Those of the chain, in order."""
        reader = Reader(self.store)
        return [link.header.note for link in reader.walk(Offset.whole(reader.begin()))]

    def ends_with(self, note: Note | None) -> bool:
        tip = recover_tip(self.store)
        return tip is not None and tip.note == note == Reader(self.store).tip().note


def test_a_log_without_segments_ends_with_the_note_of_its_genesis() -> None:
    assert Noted().ends_with(NOTE)


def test_the_last_segment_tells() -> None:
    log = Noted()
    log.append({DRAINED: "1:1:"})
    assert log.ends_with({DRAINED: "1:1:"})
    log.append(None)
    assert log.ends_with(None)


def test_a_transaction_in_parts_has_its_note() -> None:
    log = Noted()
    transaction = log.wal.rows(T, 5)
    last = len(transaction) - 1
    log.writer.put_part(transaction.slice(0, last))
    log.writer.append(transaction.slice(last, last + 1), {DRAINED: "1:1:"})
    assert log.ends_with({DRAINED: "1:1:"})
    assert list(verify(log.store))[-1].problems == []
    put_in_parts(log.writer, log.wal.rows(T, 5, announce=False), 2)
    assert log.ends_with(None)


def test_of_merged_segments_the_last_note_counts() -> None:
    log = Noted()
    for number in range(5):
        log.append({DRAINED: f"{number}:{number}:"})
    log.merge()
    assert log.notes() == [{DRAINED: "4:4:"}]
    assert log.ends_with({DRAINED: "4:4:"})
    assert list(verify(log.store))[-1].problems == []


def test_a_mark_survives_what_was_streamed_after_it() -> None:
    log = Noted()
    for note in ({"passed": "1:1:"}, None, {"passed": "2:2:"}, None):
        log.append(note)
    log.merge()
    assert log.notes() == [{"passed": "2:2:"}]


@pytest.mark.parametrize("first_is_drained", [True, False])
def test_drained_segments_are_not_merged_with_streamed_ones(first_is_drained: bool) -> None:
    """A merged note would be taken for what holds at the end of both."""
    log = Noted()
    drained: Note = {DRAINED: "1:1:"}
    first, second = (drained, None) if first_is_drained else (None, drained)
    for note in (first, first, second, second):
        log.append(note)
    log.merge()
    assert log.notes() == [first, second]
    assert log.ends_with(second)


def test_the_note_is_found_behind_progress_and_after_retention() -> None:
    log = Noted()
    for number in range(4):
        log.append({DRAINED: f"{number}:{number}:"})
    log.writer.put_progress(log.wal.end)
    log.clock.now_s += 1000.0
    retain(log.store, RetentionPolicy(age_s=1.0), now_s=log.clock.now_s, tables=set())
    assert log.ends_with({DRAINED: "3:3:"})


def test_a_reader_looks_for_the_note_once_while_the_end_stays() -> None:
    log = Noted()
    log.append({DRAINED: "1:1:"})
    log.writer.put_progress(log.wal.end)
    reader = Reader(log.store)
    assert reader.tip().note == {DRAINED: "1:1:"}
    log.store.delete([entry.key for entry in log.store.list("segments/")][-1:])
    assert reader.tip().note == {DRAINED: "1:1:"}
