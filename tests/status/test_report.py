"""The report: from the log and the streams' records alone, whatever runs or does not."""

from __future__ import annotations

import pytest

from tailrace.log import Reader
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.retention import RetentionPolicy, put_reader_position, retain
from tailrace.model import Lsn
from tailrace.postgres.quote import SourceNames
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.letter import Letter
from tailrace.sinks.letters.message import Message, lane_of, place_of
from tailrace.sinks.letters.parked import ToPark
from tailrace.status import LogReport, Report, SourceReport, State, StreamReport, gather
from tailrace.storage import MemoryStore
from tests.decode import wire
from tests.log.making import START, Clock, Wal, begin_writer, put_in_parts, shape

NAMES = SourceNames.of("main")
T = shape()
COMMITTED_S = (100.0, 200.0, 300.0)
"""In seconds since 2000, as Postgres counts."""
NOW_S = 946_684_800 + 1000.0


class Log:
    """Three transactions of one row, each in a segment of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.writer = begin_writer(self.store)
        self.wal = Wal()
        self.ends = [self.append(committed_s) for committed_s in COMMITTED_S]

    def append(self, committed_s: float) -> Lsn:
        frames = (wire.relation(T), self.wal.row(T))
        return self.writer.append(self.wal.transaction(*frames, ts_us=int(committed_s * 1e6))).end

    def merge(self) -> None:
        policy = MergePolicy(segment_count_min=2, grace_s=0.0)
        self.clock.now_s += 10
        assert Merger(self.store, writer_id="m", policy=policy).step(self.clock.now_s)

    def report(self, position: Lsn | None) -> StreamReport:
        if position is not None:
            put_reader_position(self.store, "lake", position)
        report = gather(None, NAMES, Reader(self.store), {"lake": ["public.*"]}, now_s=NOW_S)
        (stream,) = report.streams
        return stream


def test_dead_letters_and_the_rows_that_wait_are_counted() -> None:
    log = Log()
    letters = DeadLetters(log.store, "lake")
    for at, key in enumerate(("a", "a", "b")):
        message = Message(str(at), place_of(1, at, 0, 1), "public.t", lane_of("t", key), key, b"{}")
        letters.put(Letter.of(message, ToPark(at, 1, None), sink="webhook", now=NOW_S))
    letters.outdo("public.other", 2)
    found = log.report(log.ends[-1])
    assert (found.dead_letters, found.parked_keys) == (3, 2)
    letters.outdo("public.t", 2)
    found = log.report(log.ends[-1])
    assert (found.dead_letters, found.parked_keys) == (3, 0), "a load has brought those rows"


def test_a_log_that_has_not_begun() -> None:
    store = MemoryStore()
    report = gather(None, NAMES, Reader(store), {"lake": ["public.*"]}, now_s=NOW_S)
    assert report.log == LogReport(store.url)
    assert report.streams == (StreamReport("lake"),)
    assert report.source.state is State.UNKNOWN
    assert "not running" in report.source.error
    assert not report.is_healthy


def test_a_stream_that_has_not_begun_has_no_lag() -> None:
    assert Log().report(None) == StreamReport("lake")


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize(("delivered", "lag_s"), [(0, 900), (1, 800), (2, 700), (3, 0)])
def test_lag_is_the_age_of_the_oldest_commit_not_delivered(
    delivered: int, lag_s: float, is_merged: bool
) -> None:
    log = Log()
    if is_merged:
        log.merge()
    position = [START, *log.ends][delivered]
    found = log.report(position)
    assert (found.position, found.lag_s) == (position, lag_s)
    assert found.lag_bytes == log.ends[-1] - position


def test_a_huge_transaction_counts_from_its_commit() -> None:
    log = Log()
    rows = [wire.relation(T), *(log.wal.row(T) for _ in range(4))]
    put_in_parts(log.writer, log.wal.transaction(*rows, ts_us=400_000_000), 2)
    # Delivered in part: nothing before its end counts as delivered.
    found = log.report(Lsn(log.wal.end - 1))
    assert (found.lag_s, found.lag_bytes) == (600, 1)


def test_a_clock_that_is_behind_shows_no_negative_lag() -> None:
    log = Log()
    log.append(1005.0)
    assert log.report(log.ends[-1]).lag_s == 0


def test_a_reader_that_is_kept_sees_what_is_new() -> None:
    log = Log()
    reader = Reader(log.store)
    put_reader_position(log.store, "lake", START)
    first = gather(None, NAMES, reader, {"lake": ["public.*"]}, now_s=NOW_S)
    end = log.append(400.0)
    log.merge()
    second = gather(None, NAMES, reader, {"lake": ["public.*"]}, now_s=NOW_S)
    assert (first.log.segment_end, second.log.segment_end) == (log.ends[-1], end)
    assert second.streams[0].lag_s == 900


def test_a_stream_that_retention_has_passed_needs_a_person() -> None:
    log = Log()
    put_reader_position(log.store, "lake", START)
    retain(log.store, RetentionPolicy(hard_bytes_max=1), now_s=log.clock.now_s)
    found = log.report(None)
    assert found.position == START
    assert "after" in found.error
    assert not Report(SourceReport("s", State.STREAMING), LogReport("u"), (found,)).is_healthy


def test_a_stream_that_is_not_configured_any_more_is_shown_as_long_as_it_holds_the_log() -> None:
    log = Log()
    put_reader_position(log.store, "gone", START)
    report = gather(None, NAMES, Reader(log.store), {"lake": ["public.*"]}, now_s=NOW_S)
    shown = [(each.name, each.position, each.is_configured) for each in report.streams]
    assert shown == [("lake", None, True), ("gone", START, False)]


@pytest.mark.parametrize("state", list(State))
def test_it_is_healthy_if_somebody_captures_or_nobody_has_yet(state: State) -> None:
    report = Report(SourceReport("slot", state), LogReport("url"), (StreamReport("lake"),))
    is_well = state in (State.NOT_BEGUN, State.STREAMING, State.DRAINING)
    assert report.is_healthy == is_well
