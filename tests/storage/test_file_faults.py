"""Files on disks that fill up, fail, or are not what was hoped for."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.errors import StoreError
from tailrace.storage import FileStore, ObjectMissing
from tests import disk
from tests.storage.lossy_disk import LossyDisk

MiB = 1 << 20


def files(root: Path) -> list[str]:
    """Every file below `root`, temporary ones too."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one MiB."""
    with disk.small_disk(tmp_path / "small") as place:
        yield place


def test_f088_a_full_disk_is_reported_and_leaves_nothing(small_disk: Path) -> None:
    store = FileStore(small_disk)
    store.put_new("segments/1", bytes(MiB // 2))
    with pytest.raises(StoreError) as caught:
        store.put_new("segments/2", bytes(MiB))
    assert caught.value.retry
    assert "free some space" in caught.value.hint
    assert "segments/2: no space left on device" in str(caught.value)
    assert files(small_disk) == ["segments/1"]


def test_f088_writing_goes_on_when_space_returns(small_disk: Path) -> None:
    store = FileStore(small_disk)
    store.put_new("segments/1", bytes(MiB * 3 // 4))
    with pytest.raises(StoreError):
        store.put_new("segments/2", bytes(MiB // 2))
    store.delete(["segments/1"])
    store.put_new("segments/2", bytes(MiB // 2))
    assert store.get("segments/2") == bytes(MiB // 2)


def test_f088_a_read_only_disk_is_reported_and_still_read(small_disk: Path) -> None:
    FileStore(small_disk).put_new("segments/1", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = FileStore(small_disk)
    with pytest.raises(StoreError, match="read-only file system") as caught:
        store.put_new("segments/2", b"y")
    assert not caught.value.retry
    assert store.get("segments/1") == b"x"
    assert [entry.key for entry in store.list("")] == ["segments/1"]


LIMITED = """
import sys
from tailrace.errors import StoreError
from tailrace.storage import FileStore
store = FileStore(sys.argv[1])
store.put_new("small", bytes(1000))
try:
    store.put_new("large", bytes(100_000))
except StoreError as error:
    print(error.retry, error.hint)
store.put_new("after", bytes(1000))
"""


def test_f088_a_file_size_limit_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "False raise the file size limit (ulimit -f) of this process, and start it again\n"
    )
    assert files(tmp_path) == ["after", "small"]


FAULTS: dict[str, Callable[[LossyDisk], None]] = {
    "full": lambda disk: disk.fill(),
    "nearly full": lambda disk: disk.fill(free_bytes=3),
    "write fails": lambda disk: disk.fail_write(errno.EIO),
    "fsync of the file fails": lambda disk: disk.fail_fsync(errno.EIO),
    "fsync of the file finds the disk full": lambda disk: disk.fail_fsync(errno.ENOSPC),
    "fsync of the directory fails": lambda disk: disk.fail_fsync(errno.EIO, after=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_f088_a_fault_is_reported_and_the_next_try_survives_a_power_cut(fault: str) -> None:
    disk = LossyDisk(seed=1)
    store = FileStore("/log", disk=disk)
    store.put_new("segments/1", b"one")
    FAULTS[fault](disk)
    with pytest.raises(StoreError) as caught:
        store.put_new("segments/2", b"two two")
    assert caught.value.retry
    assert caught.value.hint
    assert "/log/segments/2" in str(caught.value)
    disk.heal()
    retried = "segments/3" if fault == "fsync of the directory fails" else "segments/2"
    store.put_new(retried, b"two two")
    disk.power_cut()
    disk.heal()
    again = FileStore("/log", disk=disk)
    assert again.get("segments/1") == b"one"
    assert again.get(retried) == b"two two"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "directory" not in fault])
def test_f088_a_fault_leaves_no_object_and_no_temporary_file(fault: str) -> None:
    disk = LossyDisk(seed=1)
    store = FileStore("/log", disk=disk)
    store.put_new("segments/1", b"one")
    FAULTS[fault](disk)
    with pytest.raises(StoreError):
        store.put_new("segments/2", b"two two")
    disk.heal()
    with disk.scandir("/log/~tmp") as entries:
        assert list(entries) == []
    with pytest.raises(ObjectMissing):
        store.get("segments/2")


class Recording(LossyDisk):
    """Remembers which files were synced, and which ones were said to be of no more use."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.synced_files: list[int] = []
        self.advised: list[tuple[int, bool]] = []

    def posix_fadvise(self, handle: int, offset: int, length: int, advice: int, /) -> None:
        self.advised.append((advice, handle in self.synced_files))
        raise OSError(errno.EINVAL, "no advice is taken here")

    def fsync(self, handle: int, /) -> None:
        if not self.is_directory(handle):
            self.synced_files.append(handle)
        super().fsync(handle)


def test_f088_a_file_is_synced_once_whatever_the_answer() -> None:
    disk = Recording(seed=1)
    store = FileStore("/log", disk=disk)
    store.put_new("a", b"x")
    disk.fail_fsync()
    for _ in range(3):
        with pytest.raises(StoreError):
            store.put_new("b", b"x")
    disk.heal()
    store.put_new("b", b"x")
    assert len(disk.synced_files) == len(set(disk.synced_files)) == 5


def test_what_is_bulk_leaves_the_cache_once_it_is_durable_and_nothing_else_does() -> None:
    disk = Recording(seed=1)
    store = FileStore("/log", disk=disk)
    store.put_new("a", b"x")
    assert disk.advised == []
    store.put_new("b", b"y", is_bulk=True)
    assert disk.advised == [(os.POSIX_FADV_DONTNEED, True)]
    assert store.get("b") == b"y"


def leave(path: Path, *, age_s: float, beside: Path) -> Path:
    """Leave a file that is so much older than another."""
    path.write_bytes(b"left behind")
    modified_s = beside.stat().st_mtime - age_s
    os.utime(path, (modified_s, modified_s))
    return path


def test_temporary_files_of_dead_writers_go_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    FileStore(tmp_path).put_new("a", b"x")
    dead = leave(tmp_path / "~tmp" / "dead", age_s=4000, beside=tmp_path / "a")
    live = leave(tmp_path / "~tmp" / "live", age_s=60, beside=tmp_path / "a")
    assert [entry.key for entry in FileStore(tmp_path).list("")] == ["a"]
    FileStore(tmp_path).put_new("b", b"x")
    assert not dead.exists()
    assert live.exists()


class Grabbing(LossyDisk):
    """Another process that takes a live writer's temporary file away, once."""

    grabbed = False

    def link(self, source: str, target: str, /) -> None:
        if not self.grabbed:
            self.grabbed = True
            self.unlink(source)
        super().link(source, target)


def test_a_writer_that_loses_its_temporary_file_fails_and_can_try_again() -> None:
    store = FileStore("/log", disk=Grabbing(seed=1))
    with pytest.raises(StoreError) as caught:
        store.put_new("a", b"x")
    assert caught.value.retry
    store.put_new("a", b"x")
    assert store.get("a") == b"x"


def test_a_store_that_was_removed_below_its_writer_is_reported_then_made_anew(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path / "log")
    store.put_new("a/1", b"x")
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(StoreError) as caught:
        store.put_new("a/2", b"x")
    assert caught.value.retry
    store.put_new("a/2", b"x")
    assert files(tmp_path / "log") == ["a/2"]


class NoLinks(LossyDisk):
    """A file system such as FAT."""

    def link(self, source: str, target: str, /) -> None:
        raise OSError(errno.EPERM, "operation not permitted")


def test_a_file_system_without_hard_links_is_refused() -> None:
    with pytest.raises(StoreError, match="refuses hard links") as caught:
        FileStore("/log", disk=NoLinks(seed=1)).put_new("a", b"x")
    assert not caught.value.retry
    assert "object store" in caught.value.hint


class LockedTop(LossyDisk):
    """A machine on which we may not read the top directory."""

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        if path == "/":
            raise OSError(errno.EACCES, "permission denied")
        return super().open(path, flags, mode)


def test_a_directory_above_the_store_need_not_be_readable() -> None:
    disk = LockedTop(seed=1)
    disk.mkdir("/srv")
    store = FileStore("/srv/log", disk=disk)
    store.put_new("a", b"x")
    assert store.get("a") == b"x"


def test_a_directory_that_we_made_must_become_durable() -> None:
    with pytest.raises(StoreError) as caught:
        FileStore("/log", disk=LockedTop(seed=1)).put_new("a", b"x")
    assert "permission" in caught.value.hint


class NoDirectorySyncThere(LossyDisk):
    """A file system that has nothing to sync in a directory."""

    def fsync(self, handle: int, /) -> None:
        if self.is_directory(handle):
            raise OSError(errno.EINVAL, "invalid argument")
        super().fsync(handle)


def test_a_file_system_that_syncs_no_directories_is_used_as_it_is() -> None:
    store = FileStore("/log", disk=NoDirectorySyncThere(seed=1))
    store.put_new("a", b"x")
    assert store.get("a") == b"x"


def test_files_that_are_no_objects_are_not_listed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put_new("a", b"x")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".DS_Store").write_bytes(b"")
    (tmp_path / ".nfs0001").write_bytes(b"")
    (tmp_path / "a name with spaces").write_bytes(b"")
    assert [entry.key for entry in store.list("")] == ["a"]
    store.sync("")


def test_a_file_in_the_place_of_a_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    store = FileStore(tmp_path / "log")
    for call in (
        lambda: store.put_new("a", b"x"),
        lambda: store.get("a"),
        lambda: store.list(""),
        lambda: store.sync(""),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(StoreError, match="not a directory") as caught:
            call()
        assert not caught.value.retry
