"""The core against a model of Postgres and of the log, over any sequence of events.

At every step: what is acknowledged is durable, was proved, and never goes back; what is
acknowledged away was in the log; the log holds each transaction once, whole, in order. And whenever
all faults end, everything drains.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from tailrace.capture.actions import (
    Action,
    Close,
    CloseReason,
    Job,
    Limits,
    SendStatus,
    StoreProgress,
)
from tailrace.capture.core import Core
from tailrace.model import Lsn
from tailrace.postgres.messages import Messages
from tests.capture.model_log import ModelLog, Stored
from tests.capture.wal import FOREIGN, OURS, OUTSIDE, START, Wal, data, insert, keepalive
from tests.decode import wire

LIMITS = Limits(seal_bytes=200, part_bytes=300, pending_bytes_max=900)

frames = st.one_of(
    st.integers(0, 99).map(insert),
    st.integers(0, 99).map(lambda number: insert(number, size=250)),
    st.sampled_from([FOREIGN, OURS, wire.origin(), wire.truncate(1, 2)]),
)


class CoreMachine(RuleBasedStateMachine):
    """One server, one log, and one connection after another."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.wal = Wal()
        self.log = ModelLog()
        self.confirmed: int = START
        self.confirmations: list[int] = [START]
        self.honours_start = True
        self.job: Job | None = None
        self.to_send: list[bytes] = []
        self.connect()

    # The server.

    @rule(made=st.lists(frames, max_size=6))
    def commit(self, made: list[bytes]) -> None:
        self.to_send += self.wal.commit(*made).messages()

    @rule(size=st.integers(1, 64))
    def write_elsewhere(self, size: int) -> None:
        self.wal.write_elsewhere(size)

    @precondition(lambda self: self.to_send and self.core.wants_input)
    @rule(runs=st.lists(st.integers(0, 5), min_size=1, max_size=4), is_all=st.booleans())
    def send(self, runs: list[int], is_all: bool) -> None:
        """Some messages at once, with a keepalive between one run and the next."""
        sent: list[bytes] = []
        for count in runs:
            sent += [keepalive(self.decoded())] if sent else []
            sent += self.to_send[:count]
            self.to_send = self.to_send[count:]
        self.core.receive(Messages.of(sent), self.now)
        if is_all:
            self.core.drained(self.now)
        self.poll()

    @precondition(lambda self: self.core.wants_input)
    @rule(wants_reply=st.booleans(), ahead=st.integers(0, 50), is_all=st.booleans())
    def send_keepalive(self, wants_reply: bool, ahead: int, is_all: bool) -> None:
        """Between transactions it is as far as the server has decoded; inside, anything goes."""
        position = self.decoded()
        if self.to_send and self.to_send[0][25:26] != b"B":
            position += ahead
        self.core.receive(Messages.of([keepalive(position, wants_reply=wants_reply)]), self.now)
        if is_all:
            self.core.drained(self.now)
        self.poll()

    @precondition(lambda self: not self.to_send or self.to_send[0][25:26] == b"B")
    @rule()
    def send_message_outside(self) -> None:
        self.core.receive(Messages.of([data(OUTSIDE, self.decoded())]), self.now)
        self.poll()

    def decoded(self) -> int:
        """How far the server has read its WAL: up to the next commit that is still to be sent."""
        for message in self.to_send:
            if message[25:26] == b"B":
                return int.from_bytes(message[26:34], "big")
        return self.wal.end

    # The writer.

    @precondition(lambda self: self.job is not None)
    @rule()
    def store(self) -> None:
        assert self.job is not None
        job, self.job = self.job, None
        self.do(job)
        self.core.stored(self.now)
        self.poll()

    def do(self, job: Job) -> None:
        if isinstance(job, StoreProgress):
            owed = [each for each in self.needed() if each.end_lsn <= job.position]
            assert self.log.transactions[: len(owed)] == owed, "progress over a change not durable"
        self.log.store(job)

    # Time and faults.

    @rule(seconds=st.sampled_from([0.005, 0.05, 1.0, 6.0, 16.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.poll()

    @rule()
    def drained(self) -> None:
        self.core.drained(self.now)
        self.poll()

    @rule(
        is_put=st.booleans(),
        rewind=st.integers(0, 3),
        honours_start=st.booleans(),
    )
    def crash(self, is_put: bool, rewind: int, honours_start: bool) -> None:
        """The job under way may have been done. The server may have forgotten confirmations."""
        if self.job is not None and is_put:
            self.do(self.job)
        self.log.forget_parts()
        self.confirmed = self.confirmations[max(-1 - rewind, -len(self.confirmations))]
        self.honours_start = honours_start
        self.connect()

    def connect(self) -> None:
        tip = self.log.tip
        assert self.confirmed <= tip, "the server has dropped what the log needs"
        start = max(self.confirmed, tip) if self.honours_start else self.confirmed
        self.to_send = [m for each in self.wal.after(start) for m in each.messages()]
        self.job = None
        self.core = Core(tip, limits=LIMITS, now=self.now)
        self.poll()

    def poll(self) -> None:
        for action in self.core.poll(self.now):
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        match action:
            case SendStatus(durable=durable):
                self.confirm(durable)
            case Close(reason):
                assert reason in (CloseReason.SILENT, CloseReason.STALLED)
                self.crash(is_put=False, rewind=0, honours_start=True)
            case job:
                assert self.job is None, "one job at a time"
                self.job = job

    def confirm(self, durable: Lsn) -> None:
        assert durable in self.log.acknowledgeable, "acknowledged what nothing proves"
        assert durable <= self.log.tip, "acknowledged before durable"
        assert durable >= self.confirmations[-1], "an acknowledgement went back"
        owed = [each for each in self.needed() if each.end_lsn <= durable]
        assert self.log.transactions[: len(owed)] == owed, "acknowledged what the log has not"
        self.confirmations.append(durable)
        self.confirmed = durable

    # What holds.

    def needed(self) -> list[Stored]:
        """What the log must hold in the end."""
        return [
            Stored(each.xid, each.end_lsn, each.kept)
            for each in self.wal.transactions
            if not each.is_empty
        ]

    @invariant()
    def the_log_is_a_beginning_of_what_was_committed(self) -> None:
        assert self.log.transactions == self.needed()[: len(self.log.transactions)]

    @invariant()
    def the_core_never_believes_more_than_the_log_holds(self) -> None:
        assert self.core.durable <= self.log.tip

    def teardown(self) -> None:
        """With no more faults all that was committed is stored, and all of the WAL let go."""
        for _ in range(2000):
            if self.confirmed == self.wal.end and not self.to_send:
                break
            if self.core.wants_input:
                sent, self.to_send = self.to_send[:10], self.to_send[10:]
                if not self.to_send:
                    sent = [*sent, keepalive(self.wal.end)]
                self.core.receive(Messages.of(sent), self.now)
                self.core.drained(self.now)
                self.poll()
            if self.job is not None:
                self.store()
            self.tick(0.5)
        assert self.confirmed == self.wal.end
        assert self.log.transactions == self.needed()


TestCore = CoreMachine.TestCase
TestCore.settings = settings(deadline=None, max_examples=100, stateful_step_count=50)
