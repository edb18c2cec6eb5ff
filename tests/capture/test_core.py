"""The core, step by step: what it stores, and what it acknowledges when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.capture.actions import (
    Close,
    CloseReason,
    DiscardParts,
    Seal,
    StorePart,
    StoreProgress,
)
from tailrace.model import Lsn
from tailrace.postgres.messages import Messages
from tests.capture.core_bench import Bench
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
    wal.write_elsewhere()
    made = wal.commit(*(insert(number, size=300) for number in range(20)))
    *most, last = made.messages()
    bench.receive(*most)
    parts = bench.store_all()
    assert parts and all(isinstance(job, StorePart) for job in parts)
    assert bench.core.received == made.start > START
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
    *most, last = old.messages()
    bench.receive(*most)
    bench.receive(last)
    assert any(isinstance(job, DiscardParts) for job in bench.store_all())
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


def test_f012_an_idle_position_waits_for_a_transaction_that_is_not_even_sealed(
    bench: Bench, wal: Wal
) -> None:
    made = wal.commit(insert(1))
    bench.receive(*made.messages(), keepalive(wal.write_elsewhere()), drained=False)
    assert bench.job is None
    bench.pass_time(1)
    assert isinstance(bench.store(), Seal)
    assert isinstance(bench.store(), StoreProgress)


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


def test_f012_keepalives_after_each_commit_are_as_good_as_the_last_of_them(
    bench: Bench, wal: Wal
) -> None:
    sent: list[bytes] = []
    for number in range(3):
        sent += [*wal.commit(insert(number)).messages(), keepalive(wal.write_elsewhere())]
    last = wal.end
    begin, *_ = wal.commit(insert(4)).messages()
    bench.receive(*sent, begin)
    assert isinstance(bench.store(), Seal) and len(bench.log.transactions) == 3
    bench.pass_time(1)
    assert bench.job == StoreProgress(Lsn(last))


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


def test_what_came_before_a_huge_transaction_is_sealed_before_its_parts(
    bench: Bench, wal: Wal
) -> None:
    small = wal.commit(insert(1))
    huge = wal.commit(*(insert(number, size=300) for number in range(20)))
    last = wal.commit(insert(99))
    messages = all_messages([small, huge, last])
    for first in range(0, len(messages), 5):
        bench.receive(*messages[first : first + 5], drained=False)
    bench.core.drained(bench.now)
    bench.poll()
    kinds = [type(job).__name__ for job in bench.store_all()]
    assert kinds[0] == "Seal" and kinds[1:3] == ["StorePart", "StorePart"]
    assert kinds[-2:] == ["Seal", "Seal"]
    assert [each.frames for each in bench.log.transactions] == [
        small.frames,
        huge.frames,
        last.frames,
    ]


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
        bench.core.receive(Messages.of([message]), bench.now)
    bench.core.drained(bench.now)
    assert Close(CloseReason.MALFORMED) in bench.core.poll(bench.now)
    assert not bench.log.transactions
