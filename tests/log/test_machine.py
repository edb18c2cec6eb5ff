"""A writer, zombies, a merger, retention and readers in the middle of their walk, in any order.

Whatever happens, a reader gets every change that was appended after its start, once, in order; or
it is told that retention has passed it, and then that is true.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.errors import LogFenced, OffsetOutOfRange
from tailrace.log import Link, Reader, Tip, Writer, recover_tip
from tailrace.log.marks import read_frontiers
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.plan import Limits, Piece, fetch, pieces, plan_end
from tailrace.log.retention import RetentionPolicy, put_reader_position, retain
from tailrace.log.verify import verify
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore
from tests.log.making import (
    BEGINNING,
    SOURCE,
    START,
    Change,
    Clock,
    Wal,
    anything,
    begin,
    changes_of,
    put_in_parts,
    shape,
    writer,
)

T = shape()
MERGE = MergePolicy(target_bytes=2000, segment_count_min=2, grace_s=10.0)


class Follower:
    """A reader that plans batches and reads them piece by piece, at its own pace."""

    def __init__(self, store: MemoryStore, after: Offset) -> None:
        self.store = store
        self.start = self.after = after
        self.reader = Reader(store)
        self.seen: list[Change] = []
        self.batch: list[Piece] = []
        self.links: Iterator[Link] = iter(())

    def plan(self, changes_max: int) -> None:
        end = plan_end(
            self.reader, self.after, limits=Limits(changes_max, 1 << 30), wanted=anything
        )
        self.batch = list(pieces(self.reader, self.after, end, wanted=anything))
        self.after = end

    def read_piece(self) -> None:
        for piece, found in fetch(self.store, self.batch[0], wanted=anything):
            self.seen += changes_of(piece, found)
        self.batch.pop(0)


class LogMachine(RuleBasedStateMachine):
    """Every rule is one step of one actor."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.wal = Wal()
        self.writer = writer(self.store, begin(self.store), "w0")
        self.zombies: list[Writer] = []
        self.mergers = [Merger(self.store, writer_id=f"m{n}", policy=MERGE) for n in range(2)]
        self.followers: list[Follower] = []
        self.walks: list[tuple[Offset, list[Lsn], Iterator[Link]]] = []
        self.transactions: list[tuple[Lsn, Frames]] = []
        self.retained = START

    def _rows(self, count: int) -> Frames:
        frames = self.wal.rows(T, count)
        self.transactions.append((self.wal.end, frames))
        return frames

    # The leader.

    @rule(counts=st.lists(st.integers(0, 4), min_size=1, max_size=3))
    def append(self, counts: list[int]) -> None:
        self.writer.append(Frames.concat([self._rows(count) for count in counts]))

    @rule(count=st.integers(1, 6), cut=st.integers(1, 6))
    def append_in_parts(self, count: int, cut: int) -> None:
        frames = self._rows(count)
        put_in_parts(self.writer, frames, min(cut, len(frames) - 2))

    @rule(step=st.integers(0, 30))
    def idle(self, step: int) -> None:
        position = Lsn(self.writer.position + step)
        self.writer.put_progress(position)
        self.wal.end = max(self.wal.end, position)

    @rule()
    def take_over(self) -> None:
        tip = recover_tip(self.store)
        assert tip == Tip(SOURCE, self.writer.segment_end, self.writer.position)
        self.zombies.append(self.writer)
        self.writer = writer(self.store, tip, f"w{len(self.zombies)}")

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), count=st.integers(1, 4))
    def zombie_wakes_up(self, data: st.DataObject, count: int) -> None:
        """It has received what the new leader has too, but seals it in other portions."""
        zombie = data.draw(st.sampled_from(self.zombies))
        left = [frames for end, frames in self.transactions if end > zombie.segment_end]
        if not left:
            return
        try:
            zombie.append(Frames.concat(left[:count]))
        except LogFenced:
            return
        raise AssertionError("a zombie wrote to the log")

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def zombie_is_idle(self, data: st.DataObject) -> None:
        """It knows of nothing before the next transaction, and says so late."""
        zombie = data.draw(st.sampled_from(self.zombies))
        later = [end for end, _ in self.transactions if end > zombie.segment_end]
        if later:
            zombie.put_progress(Lsn(later[0] - 1))

    @rule(count=st.integers(1, 4))
    def die_in_the_middle_of_a_transaction(self, count: int) -> None:
        frames = Wal(self.wal.end).rows(T, count)
        self.writer.put_part(frames.slice(0, len(frames) - 1))
        self.writer.discard_parts()
        self.take_over()

    # Housekeeping.

    @rule(which=st.integers(0, 1), wait_s=st.sampled_from([0.0, 5.0, 20.0]))
    def merge(self, which: int, wait_s: float) -> None:
        self.clock.now_s += wait_s
        self.mergers[which].step(self.clock.now_s)

    @rule(bytes_max=st.integers(0, 30_000), age_s=st.sampled_from([None, 30.0]))
    def drop_old(self, bytes_max: int, age_s: float | None) -> None:
        policy = RetentionPolicy(age_s=age_s, bytes_max=bytes_max)
        self.retained = max(self.retained, retain(self.store, policy, now_s=self.clock.now_s))

    @rule(at=st.integers(0, 10), hard=st.sampled_from([None, 20_000]))
    def drop_what_a_reader_does_not_need(self, at: int, hard: int | None) -> None:
        ends = sorted({offset.commit_lsn for offset, _ in self.wal.changes})
        position = ends[at % len(ends)] if ends else Lsn(0)
        put_reader_position(self.store, "slow", position)
        policy = RetentionPolicy(bytes_max=0, hard_bytes_max=hard)
        before = self.retained
        self.retained = max(self.retained, retain(self.store, policy, now_s=self.clock.now_s))
        if hard is None:
            assert self.retained <= max(before, self._slowest())

    def _slowest(self) -> Lsn:
        names = [entry.key for entry in self.store.list("readers/slow/")]
        return Lsn.from_hex16(names[-1].rsplit("/", 1)[-1])

    # Readers.

    @rule(data=st.data())
    def reader_comes(self, data: st.DataObject) -> None:
        places = [BEGINNING, *(offset for offset, _ in self.wal.changes)]
        after = data.draw(st.sampled_from(places))
        if data.draw(st.booleans()):
            after = Offset.whole(after.commit_lsn)
        self.followers.append(Follower(self.store, after))

    @precondition(lambda self: self.followers)
    @rule(data=st.data(), changes_max=st.integers(1, 12))
    def reader_goes_on(self, data: st.DataObject, changes_max: int) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        try:
            if follower.batch:
                follower.read_piece()
            else:
                follower.plan(changes_max)
        except OffsetOutOfRange:
            needed = follower.batch[0].after if follower.batch else follower.after
            assert needed < Offset.whole(self.retained)
            self.followers.remove(follower)

    @rule(data=st.data())
    def walk_begins(self, data: st.DataObject) -> None:
        after = data.draw(st.sampled_from([BEGINNING, *(o for o, _ in self.wal.changes)]))
        self.walks.append((after, [], Reader(self.store).walk(Offset.whole(after.commit_lsn))))

    @precondition(lambda self: self.walks)
    @rule(data=st.data())
    def walk_goes_on(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.walks) - 1))
        after, ends, walk = self.walks[place]
        try:
            link = next(walk, None)
        except OffsetOutOfRange:
            assert (ends[-1] if ends else after.commit_lsn) < self.retained
            self.walks.pop(place)
            return
        if link is None:
            assert not ends or ends[-1] == self.writer.segment_end
            self.walks.pop(place)
            return
        assert link.start == (ends[-1] if ends else after.commit_lsn)
        assert link.start < link.header.end
        ends.append(link.header.end)

    # What always holds.

    @invariant()
    def every_reader_has_seen_the_log(self) -> None:
        for follower in self.followers:
            upto = follower.batch[0].after if follower.batch else follower.after
            expected = [c for c in self.wal.changes if follower.start < c[0] <= upto]
            assert follower.seen == expected

    @invariant()
    def frontiers_are_within_the_log(self) -> None:
        assert read_frontiers(self.store).highest <= self.writer.segment_end

    def teardown(self) -> None:
        result = list(verify(self.store))[-1]
        assert result.problems == []
        assert result.end == self.writer.segment_end
        for follower in self.followers:
            try:
                while follower.batch or follower.after < Offset.whole(self.writer.segment_end):
                    if follower.batch:
                        follower.read_piece()
                    else:
                        follower.plan(5)
            except OffsetOutOfRange:
                continue
            assert follower.seen == [c for c in self.wal.changes if c[0] > follower.start]


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=40, stateful_step_count=40)
