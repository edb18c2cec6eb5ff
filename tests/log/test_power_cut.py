"""The log on a disk that loses what was not synced, through many short lives of its leader."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.log import Reader, Tip, Writer, layout, recover_tip
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.verify import verify
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import FileStore
from tests.log.making import BEGINNING, SOURCE, START, Wal, begin, put_in_parts, read, shape, writer
from tests.storage.lossy_disk import LossyDisk, Stopped

PATH = "/data/tailrace/log"
T = shape()
LATE_S = float(1 << 40)
POLICY = MergePolicy(target_bytes=4000, segment_count_min=2, grace_s=0.0)

LIVES = st.lists(
    st.tuples(
        st.integers(1, 150),  # how many disk operations it lasts
        st.booleans(),  # whether the power goes with it
        st.lists(st.sampled_from(["append", "append", "parts", "idle", "merge"]), max_size=10),
    ),
    min_size=1,
    max_size=5,
)


@dataclass(slots=True)
class Source:
    """A Postgres that sends again whatever was not acknowledged."""

    wal: Wal = field(default_factory=Wal)
    sent: list[tuple[Lsn, Frames]] = field(default_factory=list)
    acknowledged: Lsn = START
    life_count: int = 0

    def after(self, position: Lsn) -> Frames:
        """The next transaction after a position; a new one if there is none."""
        for end, frames in self.sent:
            if end > position:
                return frames
        frames = self.wal.rows(T, 2)
        self.sent.append((self.wal.end, frames))
        return frames

    def is_idle_at(self, position: Lsn) -> bool:
        return not self.sent or self.sent[-1][0] <= position


def _live(store: FileStore, source: Source, works: list[str]) -> None:
    tip = recover_tip(store) or begin(store)
    assert tip.position >= source.acknowledged
    source.life_count += 1
    to = writer(store, tip, f"writer{source.life_count}")
    merger = Merger(store, writer_id="merger", policy=POLICY)
    for work in works:
        match work:
            case "append":
                to.append(source.after(to.position))
            case "parts":
                put_in_parts(to, source.after(to.position), 3)
            case "idle":
                _idle(to, source)
            case "merge":
                merger.step(LATE_S)
        source.acknowledged = to.position


def _idle(to: Writer, source: Source) -> None:
    if source.is_idle_at(to.position):
        position = Lsn(to.position + 5)
        to.put_progress(position)
        source.wal.end = max(source.wal.end, position)


def _check(store: FileStore, source: Source) -> None:
    tip = recover_tip(store)
    if tip is None:
        assert source.acknowledged == START
        return
    assert tip.position >= source.acknowledged
    assert Reader(store).tip() == tip
    held = Offset.whole(tip.segment_end)
    assert read(store, BEGINNING) == [change for change in source.wal.changes if change[0] <= held]
    assert list(verify(store))[-1].problems == []


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 1 << 32), LIVES)
def test_f090_nothing_acknowledged_is_ever_lost(
    seed: int, lives: list[tuple[int, bool, list[str]]]
) -> None:
    disk, source = LossyDisk(seed), Source()
    for operations, loses_power, works in lives:
        if loses_power:
            disk.power_cut(after=operations)
        else:
            disk.kill(after=operations)
        with suppress(Stopped):
            _live(FileStore(PATH, disk=disk), source, works)
        disk.heal()
        _check(FileStore(PATH, disk=disk), source)


@settings(max_examples=40)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_f090_small_segments_go_only_when_the_merged_one_is_there_to_stay(
    seed: int, moment: int
) -> None:
    """A merger is killed anywhere in its put; the next one deletes; then the power goes."""
    disk, wal = LossyDisk(seed), Wal()
    store = FileStore(PATH, disk=disk)
    to = writer(store, begin(store))
    for _ in range(3):
        to.append(wal.rows(T))
    disk.kill(after=moment)
    with suppress(Stopped):
        Merger(FileStore(PATH, disk=disk), writer_id="first", policy=POLICY).step(LATE_S)
    disk.heal()
    Merger(FileStore(PATH, disk=disk), writer_id="second", policy=POLICY).step(LATE_S)
    disk.power_cut()
    disk.heal()
    found = FileStore(PATH, disk=disk)
    assert read(found) == wal.changes
    assert recover_tip(found) == Tip(SOURCE, wal.end, wal.end)
    assert layout.GENESIS in {entry.key for entry in found.list(layout.SEGMENTS)}
