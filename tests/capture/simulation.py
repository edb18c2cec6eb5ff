"""A whole capture in one thread, on a disk that forgets, beside a server that crashes.

Real are the core, the log's writer, recovery, merger and reader, and the file store. Made up are
the walsender, which sends and discards as Postgres does, the disk, and time. The seed decides
everything, so a run that failed can be had again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tailrace.capture.actions import (
    Close,
    DiscardParts,
    Job,
    Limits,
    Seal,
    SendStatus,
    StorePart,
    StoreProgress,
)
from tailrace.capture.core import Core
from tailrace.errors import LogFenced, StoreError
from tailrace.log import SourceIdentity, Writer, put_genesis, recover_tip
from tailrace.log.merge import MergePolicy, Merger
from tailrace.postgres.messages import Messages
from tailrace.storage import FileStore
from tests.capture.wal import (
    FOREIGN,
    OUTSIDE,
    START,
    TABLE,
    Transaction,
    Wal,
    data,
    insert,
    keepalive,
)
from tests.decode import wire
from tests.log.making import no_catalog
from tests.storage.lossy_disk import LossyDisk, Stopped

PATH = "/log"
LIMITS = Limits(seal_bytes=400, part_bytes=600, pending_bytes_max=2000)
MERGE = MergePolicy(target_bytes=4000, segment_count_min=3, grace_s=0)
SOURCE = SourceIdentity("1", 1)


@dataclass(slots=True)
class Walsender:
    """Sends what ends after the start, and lets go of what is confirmed."""

    wal: Wal = field(default_factory=Wal)
    confirmed: int = START
    saved: int = START
    queue: list[bytes] = field(default_factory=list)
    _has_sent_relation: bool = False

    def start(self, position: int) -> None:
        """START_REPLICATION: a position before what was confirmed is silently moved up to it."""
        assert self.confirmed <= position, "the log ends before what postgres has let go"
        self.queue = []
        self._has_sent_relation = False
        for each in self.wal.after(position):
            self.send(each)

    def send(self, transaction: Transaction) -> None:
        """Queue a transaction; the table's Relation frame comes once on each connection."""
        for message in transaction.messages():
            if message[25:26] == b"I" and not self._has_sent_relation:
                self._has_sent_relation = True
                self.queue.append(data(wire.relation(TABLE), transaction.start))
            self.queue.append(message)

    def decoded(self) -> int:
        """How far it has read its WAL: up to the next commit that is still to be sent."""
        for message in self.queue:
            if message[25:26] == b"B":
                return int.from_bytes(message[26:34], "big")
        return self.wal.end

    def confirm(self, position: int) -> None:
        """Take an acknowledgement."""
        assert position >= self.confirmed, "an acknowledgement went back"
        self.confirmed = position

    def crash(self) -> None:
        """Forget what was confirmed since the last checkpoint."""
        self.confirmed = self.saved


@dataclass(slots=True)
class Process:
    """One capture process: what is lost when it dies."""

    writer: Writer
    merger: Merger
    core: Core
    job: Job | None = None


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = LossyDisk(seed)
        self.server = Walsender()
        self.now = 0.0
        self.row_count = 0
        self.process_count = 0
        self.process: Process | None = None
        self.zombies: list[tuple[Writer, Job]] = []
        put_genesis(self.store(), SOURCE, START, writer_id="first", note={})
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (12, self.commit),
            (4, self.write_elsewhere),
            (30, self.deliver),
            (25, self.work),
            (12, self.tick),
            (6, self.connect),
            (2, self.merge),
            (2, self.lose_connection),
            (1, self.crash_server),
            (2, self.checkpoint_server),
            (3, self.wake_zombie),
            (2, self.break_disk),
            (4, self.mend_disk),
            (1, self.stop_process),
        ]

    def store(self) -> FileStore:
        """The store, as a new process opens it."""
        return FileStore(PATH, disk=self.disk)

    def run(self, step_count: int) -> None:
        """Let things happen, then let everything heal and drain."""
        weights = [weight for weight, _ in self.steps]
        for _ in range(step_count):
            _, step = self.random.choices(self.steps, weights)[0]
            self.take(step)
        self.drain()

    def take(self, step: Callable[[], None]) -> None:
        """One step; it may be the last one of the process or of the connection."""
        try:
            step()
        except Stopped:
            self.process = None
            self.disk.heal()
        except (StoreError, LogFenced):
            self.lose_connection()

    # The server.

    def commit(self) -> None:
        size = self.random.choice([0, 0, 10, 10, 100])
        rows = range(self.random.choice([0, 1, 1, 2, 5, 20]))
        frames = [insert(self.row_count + number, size=size) for number in rows]
        self.row_count += len(frames)
        if self.random.random() < 0.2:
            frames.append(FOREIGN)
        self.server.send(self.server.wal.commit(*frames))

    def write_elsewhere(self) -> None:
        self.server.wal.write_elsewhere(self.random.randrange(1, 100))

    def crash_server(self) -> None:
        self.lose_connection()
        self.server.crash()

    def checkpoint_server(self) -> None:
        self.server.saved = self.server.confirmed

    # The connection.

    def connect(self) -> None:
        if self.process is not None:
            return
        store = self.store()
        tip = recover_tip(store)
        assert tip is not None
        self.server.start(tip.position)
        self.process_count += 1
        name = f"writer{self.process_count}"
        self.process = Process(
            Writer(store, tip, writer_id=name, describe=no_catalog),
            Merger(store, writer_id=name, policy=MERGE),
            Core(tip.position, limits=LIMITS, now=self.now),
        )
        self.poll()

    def lose_connection(self) -> None:
        """The process goes on without its connection; its job may be done late, or never."""
        if self.process is not None and self.process.job is not None and self.random.random() < 0.5:
            self.zombies.append((self.process.writer, self.process.job))
        self.process = None

    def deliver(self) -> None:
        if self.process is None or not self.process.core.wants_input:
            return
        queue = self.server.queue
        count = self.random.randrange(1, 20)
        messages, queue[:count] = queue[:count], []
        if self.random.random() < 0.4:
            wants_reply = self.random.random() < 0.3
            messages.append(keepalive(self.server.decoded(), wants_reply=wants_reply))
        elif not queue or queue[0][25:26] == b"B":
            messages.append(data(OUTSIDE, self.server.decoded()))
        self.process.core.receive(Messages.of(messages), self.now)
        if self.random.random() < 0.7:
            self.process.core.drained(self.now)
        self.poll()

    def poll(self) -> None:
        assert self.process is not None
        for action in self.process.core.poll(self.now):
            match action:
                case SendStatus(durable=durable):
                    self.server.confirm(durable)
                case Close():
                    self.lose_connection()
                case job:
                    self.process.job = job

    # The process.

    def work(self) -> None:
        if self.process is None or self.process.job is None:
            return
        process, job = self.process, self.process.job
        do(process.writer, job)
        process.job = None
        process.core.stored(self.now)
        self.poll()

    def tick(self) -> None:
        self.now += self.random.choice([0.01, 0.1, 1.0, 1.0, 10.0])
        if self.process is not None:
            self.poll()

    def merge(self) -> None:
        if self.process is not None:
            self.process.merger.step(float(self.disk.operation_count))

    def wake_zombie(self) -> None:
        if self.zombies:
            writer, job = self.zombies.pop(self.random.randrange(len(self.zombies)))
            try:
                do(writer, job)
            except (StoreError, LogFenced):
                return

    def stop_process(self) -> None:
        after = self.random.choice([0, self.random.randrange(1, 60)])
        if self.random.random() < 0.5:
            self.disk.kill(after=after)
        else:
            self.zombies.clear()
            self.disk.power_cut(after=after)
        if after == 0:
            self.process = None
            self.disk.heal()

    def break_disk(self) -> None:
        match self.random.randrange(3):
            case 0:
                self.disk.fill(free_bytes=self.random.randrange(2000))
            case 1:
                self.disk.fail_write(errno.EIO)
            case 2:
                self.disk.fail_fsync(after=self.random.randrange(4))

    def mend_disk(self) -> None:
        self.disk.heal()

    # The end.

    def drain(self) -> None:
        """All faults end: everything must reach the log and all of the WAL be let go."""
        self.disk.heal()
        while self.zombies:
            self.take(self.wake_zombie)
        self.disk.heal()
        for _ in range(1000):
            if self.server.confirmed == self.server.wal.end and not self.server.queue:
                break
            for step in (self.connect, self.deliver, self.work, self.work):
                self.take(step)
            if self.process is not None and not self.server.queue:
                self.process.core.receive(Messages.of([keepalive(self.server.wal.end)]), self.now)
                self.process.core.drained(self.now)
            self.now += 1
            self.take(self.tick)
        assert self.server.confirmed == self.server.wal.end, "it does not drain"
        # What was acknowledged is what a power cut leaves.
        self.disk.power_cut()
        self.disk.heal()

    def expected(self) -> list[tuple[int, int]]:
        """Every row that was committed: the end of its transaction, and its number."""
        return [
            (each.end_lsn, number_of(frame))
            for each in self.server.wal.transactions
            for frame in each.frames
            if frame[:1] == b"I"
        ]


def do(writer: Writer, job: Job) -> None:
    """What the writing thread does."""
    match job:
        case Seal(frames):
            writer.append(frames)
        case StorePart(frames):
            writer.put_part(frames)
        case DiscardParts():
            writer.discard_parts()
        case StoreProgress(position):
            writer.put_progress(position)


def number_of(frame: bytes) -> int:
    """The key of an inserted row."""
    size = int.from_bytes(frame[9:13], "big")
    return int(frame[13 : 13 + size])
