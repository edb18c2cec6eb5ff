"""Files and power cuts: what `put_new` promised is there, and nothing is there in part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import StoreError
from tailrace.storage import FileStore, ObjectExists
from tests.storage.lossy_disk import LossyDisk, Stopped

PATH = "/data/tailrace/log"
OPERATIONS = 60
"""More than three puts take, so that a cut after so many comes when all is done."""

untimed = settings(deadline=None)
seeds = st.integers(0, 1 << 32)
moments = st.integers(1, OPERATIONS)
objects = st.dictionaries(
    st.sampled_from(["genesis", "segments/1", "segments/2", "merged/a/1", "parts/1"]),
    st.binary(max_size=40),
    min_size=1,
    max_size=3,
)


def put_until_stopped(disk: LossyDisk, wanted: dict[str, bytes]) -> set[str]:
    """Put one after the other until the process ends; the keys whose put returned."""
    returned = set()
    store = FileStore(PATH, disk=disk)
    try:
        for key, data in wanted.items():
            store.put_new(key, data)
            returned.add(key)
    except Stopped:
        pass
    return returned


def content(disk: LossyDisk) -> dict[str, bytes]:
    """All objects, as a new process sees them."""
    store = FileStore(PATH, disk=disk)
    return {entry.key: store.get(entry.key) for entry in store.list("")}


def is_kept(disk: LossyDisk, wanted: dict[str, bytes], moment: int) -> bool:
    """Whether a power cut at `moment` leaves what was put, and leaves nothing in part."""
    disk.power_cut(after=moment)
    returned = put_until_stopped(disk, wanted)
    disk.power_cut()
    disk.heal()
    found = content(disk)
    return returned <= found.keys() and found.items() <= wanted.items()


@untimed
@given(seed=seeds, wanted=objects, moment=moments)
def test_f090_a_put_that_returned_survives_a_power_cut_and_no_object_is_torn(
    seed: int, wanted: dict[str, bytes], moment: int
) -> None:
    assert is_kept(LossyDisk(seed), wanted, moment)


class NoFileSync(LossyDisk):
    """Stands for a store that does not sync the bytes."""

    def fsync(self, handle: int, /) -> None:
        if self.is_directory(handle):
            super().fsync(handle)


class NoDirectorySync(LossyDisk):
    """Stands for a store that does not sync directories."""

    def fsync(self, handle: int, /) -> None:
        if not self.is_directory(handle):
            super().fsync(handle)


class NoParentSync(LossyDisk):
    """Stands for a store that syncs the directory of an object, and none above it."""

    def fsync(self, handle: int, /) -> None:
        if not self.is_directory(handle) or self.holds_files(handle):
            super().fsync(handle)


@pytest.mark.parametrize("forgetful", [NoFileSync, NoDirectorySync, NoParentSync])
def test_f090_a_store_that_forgets_a_sync_is_found_out(
    forgetful: Callable[[int], LossyDisk],
) -> None:
    wanted = {"segments/1": b"some bytes", "segments/2": b"more bytes"}
    kept = [is_kept(forgetful(seed), wanted, OPERATIONS) for seed in range(30)]
    assert not all(kept)


@untimed
@given(seed=seeds, moment=moments)
def test_f090_what_a_new_writer_has_synced_survives_though_the_old_one_was_killed(
    seed: int, moment: int
) -> None:
    disk = LossyDisk(seed)
    disk.kill(after=moment)
    put_until_stopped(disk, {"segments/1": b"one", "segments/2": b"two"})
    disk.heal()
    FileStore(PATH, disk=disk).sync("segments/")
    seen = content(disk)
    disk.power_cut()
    disk.heal()
    assert content(disk) == seen


@untimed
@given(seed=seeds, moment=moments)
def test_f090_a_put_beside_the_remains_of_a_killed_writer_survives(seed: int, moment: int) -> None:
    disk = LossyDisk(seed)
    disk.kill(after=moment)
    put_until_stopped(disk, {"segments/1": b"one"})
    disk.heal()
    FileStore(PATH, disk=disk).put_new("segments/2", b"two")
    seen = content(disk)
    disk.power_cut()
    disk.heal()
    assert content(disk) == seen
    assert seen["segments/2"] == b"two"


def test_f090_what_a_killed_writer_left_may_go_if_nobody_syncs_it() -> None:
    def is_lost(seed: int, moment: int) -> bool:
        disk = LossyDisk(seed)
        disk.kill(after=moment)
        put_until_stopped(disk, {"segments/1": b"one"})
        disk.heal()
        seen = content(disk)
        disk.power_cut()
        disk.heal()
        return content(disk) != seen

    assert any(is_lost(seed, moment) for seed in range(5) for moment in range(1, OPERATIONS))


@untimed
@given(seed=seeds, moment=moments)
def test_f095_a_second_put_never_harms_the_first(seed: int, moment: int) -> None:
    disk = LossyDisk(seed)
    FileStore(PATH, disk=disk).put_new("segments/1", b"first")
    disk.power_cut(after=moment)
    try:
        FileStore(PATH, disk=disk).put_new("segments/1", b"second")
    except (ObjectExists, Stopped):
        disk.power_cut()
    disk.heal()
    assert content(disk) == {"segments/1": b"first"}


@untimed
@given(seed=seeds, good_count=st.integers(0, 8))
def test_f088_after_a_failed_fsync_the_next_try_writes_anew_and_survives(
    seed: int, good_count: int
) -> None:
    disk = LossyDisk(seed)
    store = FileStore(PATH, disk=disk)
    disk.fail_fsync(after=good_count)
    failed = False
    try:
        store.put_new("segments/1", b"bytes")
    except StoreError as error:
        assert error.retry and "kernel log" in error.hint
        failed = True
    disk.heal()
    if failed:
        # It is our own if only the directory's fsync had failed, which has been done by now.
        with suppress(ObjectExists):
            store.put_new("segments/1", b"bytes")
    disk.power_cut()
    disk.heal()
    assert content(disk) == {"segments/1": b"bytes"}


@untimed
@given(seed=seeds, moment=moments)
def test_a_lossy_run_can_be_had_again(seed: int, moment: int) -> None:
    def run() -> dict[str, bytes]:
        disk = LossyDisk(seed)
        disk.power_cut(after=moment)
        put_until_stopped(disk, {"a/1": b"one", "b/2": b"two", "c/3": b"three"})
        disk.power_cut()
        disk.heal()
        return content(disk)

    assert run() == run()
