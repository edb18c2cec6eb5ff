"""The core and time: status, silence, pauses, stalls, and the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.capture.actions import (
    CloseReason,
    Limits,
    Seal,
    SendStatus,
    StoreProgress,
)
from tailrace.capture.core import Core
from tailrace.model import Lsn
from tests.capture.core_bench import LIMITS, Bench
from tests.capture.wal import (
    START,
    Wal,
    insert,
    keepalive,
)


@pytest.fixture
def wal() -> Wal:
    return Wal()


@pytest.fixture
def bench() -> Bench:
    return Bench()


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


def test_transactions_are_sealed_together_once_nothing_more_is_there(
    bench: Bench, wal: Wal
) -> None:
    for number in range(3):
        bench.receive(*wal.commit(insert(number)).messages(), drained=False)
        assert bench.job is None
    bench.core.drained(bench.now)
    bench.poll()
    bench.store()
    assert len(bench.log.transactions) == 3 and bench.job is None


def test_transactions_are_sealed_by_age_and_by_size_while_more_comes(
    bench: Bench, wal: Wal
) -> None:
    bench.receive(*wal.commit(insert(1)).messages(), drained=False)
    bench.now = bench.core.wake_at(bench.now)
    bench.poll()
    bench.store()
    bench.receive(*wal.commit(insert(2, size=3000)).messages(), drained=False)
    bench.store()
    assert len(bench.log.transactions) == 2


def test_a_steady_flow_is_sealed_by_age_though_each_transaction_is_all_there_is(
    bench: Bench, wal: Wal
) -> None:
    limits = replace(
        LIMITS,
        trickle_bytes=500,
        trickle_interval_s=0.020,
        trickle_transaction_bytes=0,
        seal_bytes=1 << 20,
    )
    bench.core = Core(START, limits=limits, now=bench.now)
    seal_count = 0
    for number in range(40):
        bench.receive(*wal.commit(insert(number, size=200)).messages())
        bench.pass_time(0.002)
        seal_count += len(bench.store_all())
    assert 4 <= seal_count <= 8 and len(bench.log.transactions) >= 30
    bench.pass_time(0.020)
    bench.store_all()
    assert len(bench.log.transactions) == 40
    bench.receive(*wal.commit(insert(41)).messages())
    assert bench.job is not None, "little that comes now and then is sealed at once"


def test_many_small_transactions_are_sealed_by_age_and_few_of_them_one_by_one(
    bench: Bench, wal: Wal
) -> None:
    """What a seal costs is taken from those who write to the database beside us."""
    bench.core = Core(START, limits=Limits(), now=bench.now)
    assert _seals_in_a_second(bench, wal, rate=200) == 200
    assert _seals_in_a_second(bench, wal, rate=2000) <= 50
    bench.pass_time(0.050)
    bench.store_all()
    assert len(bench.log.transactions) == 2200
    assert _seals_in_a_second(bench, wal, rate=200) >= 195, "as before, when the flow has ended"


def test_after_a_rest_whatever_has_come_is_sealed_at_once(bench: Bench, wal: Wal) -> None:
    bench.core = Core(START, limits=Limits(), now=bench.now)
    many = [wal.commit(insert(number, size=500)) for number in range(400)]
    bench.receive(*(message for made in many for message in made.messages()))
    assert isinstance(bench.store(), Seal)
    assert len(bench.log.transactions) == 400


def test_what_comes_is_collected_until_it_can_be_sealed(bench: Bench, wal: Wal) -> None:
    bench.core = Core(START, limits=Limits(), now=bench.now)
    assert not bench.core.is_collecting(bench.now), "little is sealed at once"
    many = [wal.commit(insert(number, size=500)) for number in range(400)]
    bench.receive(*(message for made in many for message in made.messages()))
    assert bench.core.is_collecting(bench.now), "the writer is busy"
    bench.store()
    assert bench.core.is_collecting(bench.now), "as much as may be has just been sealed"
    bench.pass_time(0.005)
    assert not bench.core.is_collecting(bench.now)
    assert bench.core.is_collecting(bench.now, waiting_bytes=64 << 10), "so much is not little"


def test_nothing_is_collected_while_a_job_waits_for_the_writer(bench: Bench, wal: Wal) -> None:
    limits = replace(LIMITS, trickle_bytes=1, trickle_interval_s=1000.0)
    bench.core = Core(START, limits=limits, now=bench.now)
    bench.receive(*wal.commit(insert(1)).messages())
    bench.receive(*wal.commit(insert(2, size=3000)).messages(), drained=False)
    assert bench.core.is_collecting(bench.now), "the writer is busy"
    bench.core.stored(bench.now)
    assert not bench.core.is_collecting(bench.now), "what is full goes on, though nothing more may"
    bench.job = None
    bench.poll()
    bench.store()
    assert bench.core.is_collecting(bench.now)


def _seals_in_a_second(bench: Bench, wal: Wal, *, rate: int) -> int:
    seal_count = 0
    for number in range(rate):
        bench.receive(*wal.commit(insert(number)).messages())
        seal_count += len(bench.store_all())
        bench.pass_time(1 / rate)
        seal_count += len(bench.store_all())
    return seal_count


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


def test_reading_goes_on_if_nothing_waits_for_the_writer(bench: Bench, wal: Wal) -> None:
    bench.core = Core(START, limits=replace(LIMITS, part_bytes=1 << 20), now=bench.now)
    begin, row, _ = wal.commit(insert(1, size=9000)).messages()
    bench.receive(begin, row)
    assert bench.job is None and bench.core.wants_input


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


def test_an_answer_that_waits_to_be_read_while_we_are_held_up_is_not_silence(
    bench: Bench, wal: Wal
) -> None:
    bench.pass_time(16)
    bench.now += 3600
    bench.poll()
    assert bench.closed is None
    bench.receive(keepalive(wal.end))
    bench.pass_time(10)
    assert bench.closed is None


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
