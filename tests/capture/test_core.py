"""The core, step by step: what it acknowledges, when, and what it asks for."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

import pytest

from tailrace.capture.actions import (
    Action,
    Close,
    CloseReason,
    Job,
    Limits,
    Seal,
    SendStatus,
    StorePart,
    StoreProgress,
)
from tailrace.capture.core import Core
from tailrace.model import Lsn
from tests.capture.model_log import ModelLog
from tests.capture.wal import (
    FOREIGN,
    HEARTBEAT,
    OURS,
    OUTSIDE,
    START,
    Wal,
    all_messages,
    data,
    insert,
    keepalive,
)
from tests.decode import wire

LIMITS = Limits(
    seal_bytes=2000,
    seal_age_s=0.020,
    part_bytes=2000,
    pending_bytes_max=8000,
    progress_interval_s=1.0,
    status_interval_s=5.0,
    reply_interval_s=0.1,
    receive_timeout_s=30.0,
    stall_timeout_s=30.0,
)


@dataclass
class Bench:
    """A core, a clock and a list for a log; jobs are done when the test says so."""

    tip: Lsn = START
    now: float = 100.0
    log: ModelLog = field(default_factory=ModelLog)
    job: Job | None = None
    statuses: list[SendStatus] = field(default_factory=list)
    closed: CloseReason | None = None

    def __post_init__(self) -> None:
        self.core = Core(self.tip, limits=LIMITS, now=self.now)
        self.poll()
        self.statuses.clear()

    def receive(self, *messages: bytes, drained: bool = True) -> None:
        self.core.receive(messages, self.now)
        if drained:
            self.core.drained()
        self.poll()

    def poll(self) -> list[Action]:
        actions = self.core.poll(self.now)
        for action in actions:
            match action:
                case SendStatus():
                    self.statuses.append(action)
                case Close(reason):
                    self.closed = reason
                case job:
                    assert self.job is None, "one job at a time"
                    self.job = job
        return actions

    def store(self) -> Job:
        """Do the job under way."""
        assert self.job is not None
        job, self.job = self.job, None
        self.log.store(job)
        self.core.stored(self.now)
        self.poll()
        return job

    def store_all(self) -> list[Job]:
        jobs = []
        while self.job is not None:
            jobs.append(self.store())
        return jobs

    def pass_time(self, seconds: float) -> None:
        """Let time pass as the shell does: from one wake-up to the next."""
        end = self.now + seconds
        while self.closed is None and (wake := self.core.wake_at(self.now)) <= end:
            assert wake > self.now, "the shell would spin"
            self.now = wake
            self.poll()
        self.now = end
        self.poll()

    @property
    def acknowledged(self) -> int:
        """What Postgres would be told now."""
        return self.core.status(self.now).durable


@pytest.fixture
def wal() -> Wal:
    return Wal()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_f001_a_keepalive_beside_an_unsynced_transaction_acknowledges_nothing(
    bench: Bench, wal: Wal
) -> None:
    made = wal.commit(insert(1))
    bench.receive(*made.messages(), keepalive(made.end_lsn, wants_reply=True))
    assert isinstance(bench.job, Seal)
    bench.pass_time(20)
    assert bench.statuses and {status.durable for status in bench.statuses} == {START}
    bench.store()
    assert bench.acknowledged == made.end_lsn


def test_f002_a_reply_carries_the_durable_end_and_not_the_keepalives_position(
    bench: Bench, wal: Wal
) -> None:
    position = wal.write_elsewhere()
    bench.receive(keepalive(position, wants_reply=True))
    bench.pass_time(0.1)
    assert [status.durable for status in bench.statuses] == [START]
    assert bench.statuses[0].received == position


def test_f003_nothing_is_acknowledged_in_the_middle_of_a_transaction(
    bench: Bench, wal: Wal
) -> None:
    made = wal.commit(*(insert(number, size=300) for number in range(20)))
    *most, last = made.messages()
    bench.receive(*most)
    parts = bench.store_all()
    assert parts and all(isinstance(job, StorePart) for job in parts)
    assert bench.acknowledged == START
    bench.receive(last)
    while isinstance(bench.job, StorePart):
        bench.store()
        assert bench.acknowledged == START
    bench.store()
    assert bench.acknowledged == made.end_lsn


def test_f004_what_is_acknowledged_is_the_commits_end_exactly(bench: Bench, wal: Wal) -> None:
    for number in range(3):
        made = wal.commit(insert(number))
        bench.receive(*made.messages())
        bench.store_all()
        assert bench.acknowledged == made.end_lsn


def test_f004_a_tip_that_equals_a_commit_records_start_does_not_hide_the_commit(wal: Wal) -> None:
    made = wal.commit(insert(1))
    bench = Bench(tip=Lsn(made.final_lsn))
    bench.receive(*made.messages())
    assert isinstance(bench.store(), Seal)


def test_f005_changes_that_share_one_lsn_are_all_kept(bench: Bench, wal: Wal) -> None:
    made = wal.commit(*(insert(number) for number in range(50)))
    assert len({message[1:9] for message in list(made.messages())[1:-1]}) == 1
    bench.receive(*made.messages())
    bench.store_all()
    assert bench.log.transactions[0].frames == made.frames


def test_f007_a_transaction_cut_by_a_crash_comes_whole_afterwards(wal: Wal) -> None:
    first, second = wal.commit(insert(1)), wal.commit(insert(2), insert(3))
    before = Bench()
    before.receive(*first.messages(), *list(second.messages())[:2])
    before.store_all()
    after = Bench(tip=before.log.tip, log=before.log)
    after.receive(*all_messages(wal.after(after.tip)))
    after.store_all()
    assert [each.frames for each in after.log.transactions] == [first.frames, second.frames]


def test_f008_what_the_log_has_is_dropped_when_a_rewound_slot_sends_it_again(wal: Wal) -> None:
    old = [wal.commit(insert(number)) for number in range(3)]
    new = wal.commit(insert(9))
    bench = Bench(tip=Lsn(old[-1].end_lsn))
    bench.receive(*all_messages(wal.transactions))
    bench.store_all()
    assert [each.end_lsn for each in bench.log.transactions] == [new.end_lsn]


def test_f008_a_huge_transaction_that_the_log_has_leaves_no_part(wal: Wal) -> None:
    old = wal.commit(*(insert(number, size=300) for number in range(20)))
    bench = Bench(tip=Lsn(old.end_lsn))
    bench.receive(*old.messages())
    bench.store_all()
    new = wal.commit(insert(99))
    bench.receive(*new.messages())
    bench.store_all()
    assert [each.frames for each in bench.log.transactions] == [new.frames]


def test_f012_an_idle_position_waits_for_all_that_came_before_it(bench: Bench, wal: Wal) -> None:
    first, second = wal.commit(insert(1)), wal.commit(insert(2))
    bench.receive(*first.messages())
    bench.receive(*second.messages())
    position = wal.write_elsewhere()
    bench.receive(keepalive(position))
    assert isinstance(bench.store(), Seal) and bench.acknowledged == first.end_lsn
    assert isinstance(bench.store(), Seal) and bench.acknowledged == second.end_lsn
    bench.pass_time(1)
    assert bench.job == StoreProgress(Lsn(position)) and bench.acknowledged == second.end_lsn
    bench.store()
    assert bench.acknowledged == position


def test_f012_an_idle_position_is_acknowledged_only_when_its_progress_is_stored(
    bench: Bench, wal: Wal
) -> None:
    position = wal.write_elsewhere()
    bench.receive(keepalive(position))
    assert bench.job == StoreProgress(Lsn(position))
    bench.pass_time(20)
    assert {status.durable for status in bench.statuses} == {START}
    bench.store()
    bench.pass_time(1)
    assert bench.statuses[-1].durable == position


def test_a_keepalive_inside_an_open_transaction_proves_nothing(bench: Bench, wal: Wal) -> None:
    made = wal.commit(insert(1))
    begin, row, commit = made.messages()
    bench.receive(begin, keepalive(wal.end + 100))
    assert bench.job is None
    bench.receive(row, keepalive(wal.end + 100))
    assert bench.job is None
    bench.receive(commit)
    assert isinstance(bench.store(), Seal) and bench.job is None


def test_a_keepalive_between_the_parts_of_a_transaction_proves_nothing(
    bench: Bench, wal: Wal
) -> None:
    made = wal.commit(*(insert(number, size=300) for number in range(8)))
    *most, _ = made.messages()
    bench.receive(*most)
    bench.store_all()
    bench.receive(keepalive(wal.end + 100))
    bench.pass_time(5)
    assert bench.job is None and bench.acknowledged == START


def test_f013_status_goes_out_on_a_timer_without_being_asked_for(bench: Bench, wal: Wal) -> None:
    for _ in range(4):
        bench.receive(keepalive(wal.write_elsewhere()))
        bench.pass_time(5)
    assert len(bench.statuses) >= 4


def test_f013_status_goes_out_while_the_writer_is_busy(bench: Bench, wal: Wal) -> None:
    bench.receive(*wal.commit(insert(1)).messages())
    bench.pass_time(11)
    assert bench.job is not None and len(bench.statuses) == 2


def test_a_durable_segment_is_acknowledged_within_a_second(bench: Bench, wal: Wal) -> None:
    made = wal.commit(insert(1))
    bench.receive(*made.messages())
    bench.store()
    bench.pass_time(1)
    assert bench.statuses[-1].durable == made.end_lsn


def test_a_requested_reply_goes_out_at_once_but_not_thousands_of_times(
    bench: Bench, wal: Wal
) -> None:
    bench.pass_time(1)
    bench.receive(keepalive(wal.end, wants_reply=True))
    assert len(bench.statuses) == 1
    for _ in range(1000):
        bench.now += 0.001
        bench.receive(keepalive(wal.end, wants_reply=True))
    assert 5 <= len(bench.statuses) <= 12


def test_progress_is_stored_at_most_once_a_second_and_the_newest_wins(
    bench: Bench, wal: Wal
) -> None:
    jobs = []
    for _ in range(1000):
        bench.now += 0.005
        bench.receive(keepalive(wal.write_elsewhere(8)))
        jobs += bench.store_all()
    assert 5 <= len(jobs) <= 6
    bench.pass_time(1)
    assert bench.store() == StoreProgress(Lsn(wal.end))


def test_f048_a_transaction_that_holds_nothing_moves_the_position_and_leaves_no_segment(
    bench: Bench, wal: Wal
) -> None:
    made = [wal.commit(), wal.commit(FOREIGN), wal.commit(wire.origin())]
    bench.receive(*all_messages(made))
    jobs = bench.store_all()
    assert jobs == [StoreProgress(Lsn(made[-1].end_lsn))]
    assert bench.acknowledged == made[-1].end_lsn


def test_f048_empty_transactions_wait_for_the_full_ones_before_them(bench: Bench, wal: Wal) -> None:
    full, empty = wal.commit(insert(1)), wal.commit()
    bench.receive(*full.messages(), *empty.messages())
    assert isinstance(bench.store(), Seal)
    assert bench.acknowledged == full.end_lsn
    assert bench.store() == StoreProgress(Lsn(empty.end_lsn))


def test_f071_messages_of_others_and_those_outside_transactions_are_dropped(
    bench: Bench, wal: Wal
) -> None:
    made = wal.commit(FOREIGN, insert(1), OURS, FOREIGN)
    bench.receive(data(OUTSIDE), *made.messages(), data(HEARTBEAT))
    bench.store_all()
    assert [each.frames for each in bench.log.transactions] == [(insert(1), OURS)]


def test_f071_a_message_outside_transactions_neither_stalls_nor_acknowledges(
    bench: Bench, wal: Wal
) -> None:
    position = wal.write_elsewhere()
    bench.receive(data(OUTSIDE, lsn=position))
    assert bench.job is None and bench.acknowledged == START
    bench.receive(keepalive(position))
    bench.store()
    assert bench.acknowledged == position


def test_transactions_are_sealed_together_once_nothing_more_is_there(
    bench: Bench, wal: Wal
) -> None:
    for number in range(3):
        bench.receive(*wal.commit(insert(number)).messages(), drained=False)
        assert bench.job is None
    bench.core.drained()
    bench.poll()
    bench.store()
    assert len(bench.log.transactions) == 3 and bench.job is None


def test_transactions_are_sealed_by_age_and_by_size_while_more_comes(
    bench: Bench, wal: Wal
) -> None:
    bench.receive(*wal.commit(insert(1)).messages(), drained=False)
    bench.pass_time(0.020)
    bench.store()
    bench.receive(*wal.commit(insert(2, size=3000)).messages(), drained=False)
    bench.store()
    assert len(bench.log.transactions) == 2


def test_what_came_before_a_huge_transaction_is_sealed_before_its_parts(
    bench: Bench, wal: Wal
) -> None:
    small = wal.commit(insert(1))
    huge = wal.commit(*(insert(number, size=300) for number in range(20)))
    last = wal.commit(insert(99))
    messages = all_messages([small, huge, last])
    for first in range(0, len(messages), 5):
        bench.receive(*messages[first : first + 5], drained=False)
    bench.core.drained()
    bench.poll()
    kinds = [type(job).__name__ for job in bench.store_all()]
    assert kinds[0] == "Seal" and kinds[1:3] == ["StorePart", "StorePart"]
    assert kinds[-2:] == ["Seal", "Seal"]
    assert [each.frames for each in bench.log.transactions] == [
        small.frames,
        huge.frames,
        last.frames,
    ]


def test_f045_reading_pauses_while_the_writer_is_behind_and_goes_on_after(
    bench: Bench, wal: Wal
) -> None:
    made = wal.commit(*(insert(number, size=300) for number in range(60)))
    messages = list(made.messages())
    sent = 0
    while bench.core.wants_input:
        bench.receive(messages[sent])
        sent += 1
    assert LIMITS.pending_bytes_max <= 350 * sent <= 2 * LIMITS.pending_bytes_max
    bench.store_all()
    assert bench.core.wants_input


def test_a_long_pause_of_reading_is_not_silence(bench: Bench, wal: Wal) -> None:
    bench.receive(*wal.commit(insert(1, size=9000)).messages())
    assert not bench.core.wants_input
    bench.pass_time(29)
    bench.store()
    bench.pass_time(LIMITS.receive_timeout_s / 2 + 1)
    assert bench.closed is None
    assert bench.statuses[-1].request_reply


def test_silence_is_asked_about_and_then_the_connection_is_given_up(bench: Bench) -> None:
    bench.pass_time(16)
    assert [status.request_reply for status in bench.statuses].count(True) == 1
    bench.pass_time(13)
    assert bench.closed is None
    bench.pass_time(1)
    assert bench.closed is CloseReason.SILENT


def test_any_message_ends_the_silence(bench: Bench, wal: Wal) -> None:
    for _ in range(5):
        bench.pass_time(29)
        bench.receive(keepalive(wal.end))
    assert bench.closed is None


def test_f087_a_store_that_does_not_answer_costs_the_connection(bench: Bench, wal: Wal) -> None:
    bench.receive(*wal.commit(insert(1)).messages())
    for _ in range(5):
        bench.pass_time(5)
        bench.receive(keepalive(wal.end, wants_reply=True))
    assert bench.closed is None
    bench.pass_time(5)
    assert bench.closed is CloseReason.STALLED


def test_commits_that_go_back_cost_the_connection(bench: Bench, wal: Wal) -> None:
    first, second = wal.commit(insert(1)), wal.commit(insert(2))
    bench.receive(*second.messages())
    bench.receive(*first.messages())
    assert bench.closed is CloseReason.DISORDER


@pytest.mark.parametrize("reach", ["tip", "empty"])
def test_commits_may_not_go_back_by_way_of_what_is_not_kept(reach: str, wal: Wal) -> None:
    old, first, second = (wal.commit(insert(number)) for number in range(3))
    bench = Bench(tip=Lsn(old.end_lsn))
    if reach == "empty":
        second = replace(second, frames=())
    bench.receive(*second.messages())
    bench.receive(*all_messages([old, first] if reach == "tip" else [first]))
    assert bench.closed is CloseReason.DISORDER


BEGIN, ROW, COMMIT = Wal().commit(insert(1)).messages()


@pytest.mark.parametrize(
    "messages",
    [
        [b"x" + BEGIN[1:]],
        [BEGIN[:25]],
        [BEGIN[:30], COMMIT],
        [keepalive(START)[:9]],
        [BEGIN, COMMIT[:-4]],
        [ROW, COMMIT],
        [BEGIN, BEGIN, COMMIT],
        [data(OURS[:5])],
        [BEGIN, *[data(insert(1, size=1500))] * 2, BEGIN, *[data(insert(1, size=1500))] * 2],
        [BEGIN, *[data(insert(1, size=1500))] * 2, BEGIN, COMMIT],
        [data(insert(1, size=2500))],
    ],
    ids=lambda messages: b"".join(message[:1] for message in messages).decode(),
)
def test_f086_what_postgres_never_sends_is_not_stored(bench: Bench, messages: list[bytes]) -> None:
    for message in messages:
        bench.core.receive([message], bench.now)
    bench.core.drained()
    assert Close(CloseReason.MALFORMED) in bench.core.poll(bench.now)
    assert not bench.log.transactions


def test_stopping_makes_everything_complete_durable_at_once(bench: Bench, wal: Wal) -> None:
    bench.receive(keepalive(wal.write_elsewhere()))
    bench.store()
    made, cut = wal.commit(insert(1)), wal.commit(insert(2))
    bench.receive(*made.messages(), drained=False)
    position = made.end_lsn
    bench.receive(keepalive(position), *list(cut.messages())[:-1], drained=False)
    assert not bench.core.is_at_rest and bench.job is None
    bench.core.stop()
    bench.poll()
    bench.store_all()
    assert bench.core.is_at_rest and not bench.core.wants_input
    assert bench.core.status(bench.now).durable == made.end_lsn


def test_stopping_stores_an_idle_position_without_waiting(bench: Bench, wal: Wal) -> None:
    bench.receive(keepalive(wal.write_elsewhere()))
    bench.store()
    position = wal.write_elsewhere()
    bench.receive(keepalive(position))
    assert bench.job is None
    bench.core.stop()
    bench.poll()
    assert bench.store() == StoreProgress(Lsn(position))


def test_the_first_status_moves_the_slot_to_the_logs_tip(wal: Wal) -> None:
    core = Core(Lsn(0x9000), limits=LIMITS, now=0.0)
    assert core.poll(0.0) == [SendStatus(Lsn(0x9000), Lsn(0x9000), False)]


def test_a_keepalive_holds_its_position_and_whether_it_wants_a_reply() -> None:
    assert keepalive(7, wants_reply=True) == b"k" + struct.pack(">QQB", 7, 0, 1)
