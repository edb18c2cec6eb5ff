"""A core with a clock and a list for a log, for tests that go step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.capture.actions import Action, Close, CloseReason, Job, Limits, SendStatus
from tailrace.capture.core import Core
from tailrace.model import Lsn
from tailrace.postgres.messages import Messages
from tests.capture.model_log import ModelLog
from tests.capture.wal import START

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
        self.core.receive(Messages.of(messages), self.now)
        if drained:
            self.core.drained(self.now)
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
            self.look()
        self.now = end
        self.look()

    def look(self) -> None:
        """Look at the socket, as the shell does when it wakes, and find nothing."""
        if self.core.wants_input:
            self.core.drained(self.now)
        self.poll()

    @property
    def acknowledged(self) -> int:
        """What Postgres would be told now."""
        return self.core.status(self.now).durable
