"""The window against a model: whatever fails and whenever it is answered, nothing is lost, each
lane stays in order, and the frontier never passes what is not settled.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import TABLE_LANE, Message, place_of
from tailrace.sinks.letters.parked import Parked
from tailrace.sinks.queue.errors import http_failure, no_answer
from tailrace.sinks.queue.limits import WindowLimits
from tailrace.sinks.queue.sender import RequestLimits
from tailrace.sinks.queue.window import Window

THROTTLED = Failure(Kind.RETRIABLE, "throttled", "")
POISON = Failure(Kind.POISON, "invalid", "")
DENIED = Failure(Kind.INFRASTRUCTURE, "denied", "")
SINGLE = RequestLimits(message_count=4, request_bytes=400, message_bytes=200)
ORDERED = RequestLimits(message_count=4, request_bytes=400, message_bytes=200, is_ordered=True)


def message(at: int, table: str, lane: str, size: int = 10) -> Message:
    return Message(f"e{at}", place_of(1, at, 0, 1), table, lane, lane, b"x" * size)


def messages(*lanes: str, size: int = 10) -> list[Message]:
    """One message for each, all of one table; `T` is a barrier."""
    return [
        message(at, "t", TABLE_LANE if lane == "T" else lane, size) for at, lane in enumerate(lanes)
    ]


def window(
    batch: list[Message],
    request: RequestLimits = SINGLE,
    limits: WindowLimits | None = None,
    parked: Parked | None = None,
) -> Window:
    return Window(batch, parked or Parked(), request, limits or WindowLimits(), Random(1))


class Delivery(RuleBasedStateMachine):
    """Requests are answered in any order, for the whole or in part, well or badly."""

    @initialize(
        lanes=st.lists(st.sampled_from(["a", "a", "b", "c", "T"]), min_size=6, max_size=30),
        tables=st.lists(st.sampled_from(["t", "t", "t", "u"]), min_size=30, max_size=30),
        sizes=st.lists(st.sampled_from([10, 10, 150, 300]), min_size=30, max_size=30),
        is_ordered=st.booleans(),
        count=st.integers(1, 12),
        parks=st.booleans(),
    )
    def begin(
        self,
        lanes: list[str],
        tables: list[str],
        sizes: list[int],
        is_ordered: bool,
        count: int,
        parks: bool,
    ) -> None:
        self.batch = [
            message(at, table, TABLE_LANE if lane == "T" else lane, size)
            for at, (lane, table, size) in enumerate(zip(lanes, tables, sizes, strict=False))
        ]
        self.request = ORDERED if is_ordered else SINGLE
        self.limits = WindowLimits(
            message_count=count, bytes_max=1000, attempt_count=3, parks_exhausted=parks
        )
        self.parked = Parked()
        self.window = window(self.batch, self.request, self.limits, self.parked)
        self.under_way: list[list[int]] = []
        self.delivered: list[int] = []
        self.letters: list[int] = []
        self.saved = 0
        self.now = 0.0

    @rule()
    def take(self) -> None:
        taken = self.window.take(self.now)
        if not taken:
            return
        assert len(taken) <= self.request.message_count
        assert sum(len(self.batch[at].payload) for at in taken) <= self.request.request_bytes
        assert max(taken) < self.saved + self.limits.message_count
        lanes = [(self.batch[at].table, self.batch[at].lane) for at in taken]
        if not self.request.is_ordered:
            assert len(set(lanes)) == len(lanes)
        for at in taken:
            before = [each for each in range(at) if self.is_bound(each, at)]
            rest = set(before) - set(self.delivered) - set(self.letters)
            assert rest <= {each for each in taken if each < at}
            assert not any(each in self.letters for each in before)
        self.under_way.append(taken)

    def is_bound(self, first: int, second: int) -> bool:
        """Whether the two must stay in order."""
        one, other = self.batch[first], self.batch[second]
        if one.table != other.table:
            return False
        return one.lane == other.lane or one.is_barrier or other.is_barrier

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        taken = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        outcomes: list[Failure | None]
        if self.request.is_ordered:
            whole = data.draw(
                st.sampled_from([None, None, no_answer(""), http_failure(422, ""), THROTTLED])
            )
            outcomes = [whole] * len(taken)
        else:
            each = st.sampled_from([None, None, THROTTLED, POISON])
            outcomes = data.draw(st.lists(each, min_size=len(taken), max_size=len(taken)))
        self.window.answered(taken, outcomes, self.now)
        self.delivered += [at for at, failure in zip(taken, outcomes, strict=True) if not failure]

    @rule()
    def park(self) -> None:
        for each in self.window.to_park():
            for other in range(each.at):
                if self.batch[other].lane == self.batch[each.at].lane and self.is_bound(
                    other, each.at
                ):
                    assert other in self.delivered or other in self.letters
            self.letters.append(each.at)
            self.window.settle(each.at)

    @rule()
    def save(self) -> None:
        self.saved = self.window.frontier
        self.window.saved(self.saved)

    @rule()
    def wait(self) -> None:
        self.now = max(self.now, self.window.wait_until() or 0.0)

    @invariant()
    def frontier_never_passes_what_is_not_settled(self) -> None:
        settled = {*self.delivered, *self.letters}
        assert settled.issuperset(range(self.window.frontier))
        assert len(self.delivered) == len(set(self.delivered)), "sent again after an answer"
        assert not set(self.delivered) & set(self.letters)

    def teardown(self) -> None:
        """From any state everything gets settled, unless the stream was halted."""
        if not hasattr(self, "window"):
            return
        for _ in range(20 * len(self.batch) + 20):
            self.take()
            for taken in self.under_way:
                self.window.answered(taken, [None] * len(taken), self.now)
                self.delivered += taken
            self.under_way = []
            self.park()
            self.wait()
            self.save()
        assert self.window.is_over or self.window.halted is not None
        self.frontier_never_passes_what_is_not_settled()
        for at in self.letters:
            later = [each for each in range(at, len(self.batch)) if self.is_bound(at, each)]
            assert not set(later) & set(self.delivered), "something passed a dead letter"


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_f096_later_messages_of_a_key_wait_while_an_earlier_one_is_retried() -> None:
    on_way = window(messages("a", "b", "a", "a"))
    assert on_way.take(0.0) == [0, 1]
    on_way.answered([0, 1], [THROTTLED, None], 0.0)
    assert on_way.take(-1.0) == []
    due = on_way.wait_until()
    assert due is not None and on_way.take(due) == [0], "only the failed one, and nothing behind it"
    on_way.answered([0], [None], due)
    assert on_way.take(due) == [2]
    assert on_way.frontier == 2


def test_poison_parks_its_key_and_the_others_flow() -> None:
    on_way = window(messages("a", "b", "a", "b"))
    on_way.answered(on_way.take(0.0), [POISON, None], 0.0)
    (letter,) = on_way.to_park()
    assert (letter.at, letter.failure, letter.attempt_count) == (0, POISON, 1)
    assert on_way.frontier == 0, "not before it is durably among the dead letters"
    on_way.settle(0)
    (behind,) = on_way.to_park()
    assert (behind.at, behind.failure) == (2, None)
    assert on_way.take(0.0) == [3]


def test_request_that_is_taken_whole_may_hold_several_messages_of_a_key() -> None:
    on_way = window(messages("a", "b", "a", "a", "a"), ORDERED)
    assert on_way.take(0.0) == [0, 2, 3, 4]
    assert on_way.take(0.0) == [1]
    on_way.answered([0, 2, 3, 4], [None] * 4, 0.0)
    assert on_way.take(0.0) == [], "what is settled is not sent again"
    on_way.answered([1], [None], 0.0)
    assert on_way.is_over


def test_reason_of_a_refused_request_is_found_by_halving() -> None:
    on_way = window(messages("a", "b", "c", "d"), ORDERED)
    refused = http_failure(422, "no")
    letters, requests = [], 0
    while not on_way.is_over:
        taken = on_way.take(0.0)
        requests += bool(taken)
        on_way.answered(taken, [refused if 2 in taken else None] * len(taken), 0.0)
        for each in on_way.to_park():
            letters.append(each.at)
            on_way.settle(each.at)
    assert letters == [2] and requests <= 6


def test_halving_uses_up_no_tries_of_the_messages_beside_the_reason() -> None:
    on_way = window(messages("a", "b", "c", "d"), ORDERED, WindowLimits(attempt_count=2))
    refused, busy = http_failure(422, "no"), http_failure(500, "busy")
    for failure, expected in ((refused, [0, 1, 2, 3]), (refused, [0, 1]), (busy, [0])):
        taken = on_way.take(0.0)
        assert taken == expected
        on_way.answered(taken, [failure] * len(taken), 0.0)
    assert on_way.halted is None, "one try of two"
    due = on_way.wait_until()
    assert due is not None
    on_way.answered(on_way.take(due), [busy], due)
    assert on_way.halted == busy


def test_f097_oversize_message_is_a_dead_letter_without_being_sent() -> None:
    batch = [message(0, "t", "a", size=201), message(1, "t", "a"), message(2, "t", "b")]
    on_way = window(batch)
    assert on_way.take(0.0) == [2]
    (letter,) = on_way.to_park()
    assert letter.failure is not None and letter.failure.code == "oversize"


@pytest.mark.parametrize(
    ("parks", "failure", "is_halted"),
    [(False, THROTTLED, True), (True, THROTTLED, False), (True, no_answer("refused"), True)],
)
def test_exhausted_retries_park_or_halt_as_configured_and_an_outage_always_halts(
    parks: bool, failure: Failure, is_halted: bool
) -> None:
    on_way = window(messages("a"), limits=WindowLimits(attempt_count=2, parks_exhausted=parks))
    now = 0.0
    for _ in range(2):
        on_way.answered(on_way.take(now), [failure], now)
        now = on_way.wait_until() or now
    assert (on_way.halted is not None) == is_halted
    assert bool(on_way.to_park()) != is_halted


def test_retries_end_after_their_time_as_well() -> None:
    on_way = window(messages("a"), limits=WindowLimits(attempt_count=100, elapsed_s=5.0))
    on_way.answered(on_way.take(0.0), [THROTTLED], 5.0)
    assert on_way.halted == THROTTLED


def test_infrastructure_halts_at_once_and_is_never_a_dead_letter() -> None:
    on_way = window(messages("a", "b"), limits=WindowLimits(parks_exhausted=True))
    on_way.answered(on_way.take(0.0), [DENIED, None], 0.0)
    assert on_way.halted == DENIED and not on_way.to_park()
    assert on_way.ahead == {1}


def test_truncate_waits_for_its_table_and_its_table_for_it() -> None:
    on_way = window(messages("a", "b", "T", "a", "c"))
    assert on_way.take(0.0) == [0, 1]
    on_way.answered([0], [None], 0.0)
    assert on_way.take(0.0) == []
    on_way.answered([1], [None], 0.0)
    assert on_way.take(0.0) == [2]
    assert on_way.take(0.0) == []
    on_way.answered([2], [None], 0.0)
    assert on_way.take(0.0) == [3, 4]


def test_window_bounds_what_is_on_its_way_by_count_and_by_bytes() -> None:
    lanes = [str(at) for at in range(9)]
    by_count = window(messages(*lanes), limits=WindowLimits(message_count=3))
    assert by_count.take(0.0) == [0, 1, 2]
    by_count.answered([0, 1, 2], [None] * 3, 0.0)
    assert by_count.take(0.0) == [], "what is not saved could be sent again"
    by_count.saved(3)
    assert by_count.take(0.0) == [3, 4, 5]
    by_bytes = window(messages(*lanes), limits=WindowLimits(bytes_max=25))
    assert by_bytes.take(0.0) == [0, 1]
