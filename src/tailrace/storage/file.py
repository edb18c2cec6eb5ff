"""Objects as files below a directory.

`put_new` keeps this order, and each step is there for one fault:

1. write a temporary file and fsync it: the name, once it appears, never leads to torn bytes;
2. hard-link it to its final name: `link` refuses an existing name, so one writer wins, and the name
   appears at once;
3. fsync the directory: the name survives a power cut. The first use of a directory syncs all above
   it as well, since whoever made them, maybe another process that died, may not have done so.

A failed fsync says that the kernel may have dropped the bytes and called the pages clean, so the
file is thrown away and never synced again; the caller's next try writes a new one.

Temporary files lie in `~tmp`, a name that no key can have. Those that a killed writer left behind
are removed an hour later by the next one. Should that ever hit a live writer (a clock that jumps),
its `link` fails and it tries again. (O_TMPFILE would leave nothing behind and spare 0.05 ms of
0.45, but too many file systems lack it, and two ways are worse than one.)

Hard links are required, as ext4, XFS, Btrfs, ZFS, tmpfs, APFS and NFS have them; a file system
without them (FAT, some network mounts) is refused at the first put, because nothing else there is
both atomic and exclusive everywhere.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

from tailrace.errors import StoreError
from tailrace.storage.disk import Disk
from tailrace.storage.store import (
    Data,
    Entries,
    Entry,
    ObjectExists,
    ObjectMissing,
    check_key,
    check_listing,
    check_prefix,
    check_range,
    is_key,
)

_TEMPORARY: Final = "~tmp"
_TEMPORARY_AGE_MAX_S: Final = 3600.0

_SIZE_HINT: Final = "raise the file size limit (ulimit -f) of this process, and start it again"
_LINKS_HINT: Final = "use a file system with hard links (ext4, XFS, NFS) or an object store"

CURED_BY_RESTART: Final = frozenset({_SIZE_HINT, _LINKS_HINT})
"""Hints about this process, or its configuration: it does not notice when that is seen to."""

# What to do, and whether trying again may help without a person.
_REMEDIES: Final = {
    errno.ENOSPC: ("the disk is full: free some space; what runs then goes on", True),
    errno.EDQUOT: ("the disk quota is used up: free some space; what runs then goes on", True),
    errno.EIO: ("the disk failed: look at the kernel log and check the disk", True),
    errno.ENOENT: ("someone removed a directory or a temporary file of the store", True),
    errno.EROFS: ("the file system is read-only: it was mounted so, or it met a disk fault", False),
    errno.EACCES: ("give this user read and write permission there", False),
    errno.EPERM: ("give this user read and write permission there", False),
    errno.EFBIG: (_SIZE_HINT, False),
    errno.ENOTDIR: ("a file stands where a directory should be: choose another place", False),
}

_CAN_ADVISE: Final = hasattr(os, "posix_fadvise")  # macOS cannot

_LINK_REFUSED: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FileStore:
    """A `Store` in a directory, which is made at the first put if it is missing."""

    def __init__(self, path: str | Path, *, disk: Disk = os) -> None:
        self._root = os.path.abspath(path)
        self._disk = disk
        self._durable_directories: set[str] = set()
        self._leftovers_removed = False

    @property
    def url(self) -> str:
        """The absolute `file://` URL."""
        return Path(self._root).as_uri()

    def __repr__(self) -> str:
        return f"FileStore({self._root!r})"

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        """See `Store.put_new`."""
        check_key(key)
        path = self._path(key)
        directory = os.path.dirname(path)
        try:
            self._make_durable_directory(directory)
            created = self._create(path, data, is_bulk=is_bulk)
            # Also when the name was taken: it may be our own, from a try that failed right here.
            self._sync_directory(directory)
        except OSError as error:
            if error.errno == errno.ENOENT:
                # Someone removed a directory below us. The next try looks at all of them again.
                self._durable_directories.clear()
            raise _failure("write", path, error) from error
        if not created:
            raise ObjectExists(f"object {key} already exists in {self.url}")

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        check_key(key)
        check_range(start, length)
        path = self._path(key)
        try:
            handle = self._disk.open(path, os.O_RDONLY)
            try:
                return self._read(handle, start, length)
            finally:
                self._disk.close(handle)
        except FileNotFoundError as error:
            raise ObjectMissing(f"no object {key} in {self.url}") from error
        except OSError as error:
            raise _failure("read", path, error) from error

    def list(self, prefix: str, *, after: str = "") -> Entries:
        """See `Store.list`. Only files past `after` are looked at; the others cost their name."""
        check_listing(prefix, after)
        try:
            entries = list(self._entries(prefix, after))
        except OSError as error:
            raise _failure("list", self._path(prefix), error) from error
        entries.sort(key=attrgetter("key"))
        return entries

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""
        check_prefix(prefix)
        try:
            for directory in self._directories(prefix):
                self._make_durable_directory(directory)
                self._sync_directory(directory)
        except OSError as error:
            raise _failure("sync", self._path(prefix), error) from error

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`."""
        for key in keys:
            check_key(key)
            path = self._path(key)
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _failure("delete", path, error) from error

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key).rstrip("/")

    def _create(self, path: str, data: Data, *, is_bulk: bool) -> bool:
        """Link a synced file with `data` to `path`; False if the name is taken."""
        temporary = self._write_temporary(data, is_bulk=is_bulk)
        try:
            self._disk.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _LINK_REFUSED:
                raise
            raise StoreError(
                f"cannot write {path}: the file system refuses hard links",
                hint=_LINKS_HINT,
                retry=False,
            ) from error
        finally:
            self._discard(temporary)
        return True

    def _write_temporary(self, data: Data, *, is_bulk: bool) -> str:
        """Write and sync a file of its own; its path."""
        directory = self._path(_TEMPORARY)
        self._make_durable_directory(directory)
        path = os.path.join(directory, uuid.uuid4().hex)
        handle = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                if not self._leftovers_removed:
                    self._leftovers_removed = True
                    self._remove_leftovers(directory, now_s=self._disk.fstat(handle).st_mtime)
                rest = memoryview(data)
                while rest:
                    rest = rest[self._disk.write(handle, rest) :]
                self._disk.fsync(handle)
                if is_bulk and _CAN_ADVISE:
                    self._leave_cache(handle)
            finally:
                self._disk.close(handle)
        except OSError:
            self._discard(path)
            raise
        return path

    def _leave_cache(self, handle: int) -> None:
        """Give back the pages of a synced file: the cache is for what others read, and to write to
        pages that have just become free costs less than half of writing to new ones.
        """
        with suppress(OSError):
            self._disk.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def _remove_leftovers(self, directory: str, *, now_s: float) -> None:
        """Remove what writers that died left behind, by the file system's own clock."""
        with self._disk.scandir(directory) as entries:
            for entry in entries:
                # Another writer may remove its own, or the same leftover, meanwhile.
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < now_s - _TEMPORARY_AGE_MAX_S:
                        self._discard(os.path.join(directory, entry.name))

    def _discard(self, temporary: str) -> None:
        # It holds nothing that anyone needs; if it cannot go now, it goes as a leftover.
        with suppress(OSError):
            self._disk.unlink(temporary)

    def _make_durable_directory(self, directory: str) -> None:
        """Make `directory` if it is missing; its name and all names above it become durable."""
        if directory in self._durable_directories:
            return
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        self._make_durable_directory(parent)
        try:
            self._disk.mkdir(directory)
            made = True
        except FileExistsError:
            made = False
        try:
            self._sync_directory(parent)
        except PermissionError:
            # Far above us there may be directories that we may pass but not read; we made nothing
            # in them.
            if made:
                raise
        self._durable_directories.add(directory)

    def _sync_directory(self, directory: str) -> None:
        handle = self._disk.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._disk.fsync(handle)
        except OSError as error:
            # A file system that has nothing to sync in a directory (autofs, some network mounts)
            # says EINVAL; Postgres takes it the same way (fsync_fname_ext).
            if error.errno != errno.EINVAL:
                raise
        finally:
            self._disk.close(handle)

    def _read(self, handle: int, start: int, length: int | None) -> bytes:
        end = self._disk.fstat(handle).st_size
        if length is not None:
            end = min(end, start + length)
        chunks = []
        while start < end and (chunk := self._disk.pread(handle, end - start, start)):
            chunks.append(chunk)
            start += len(chunk)
        return b"".join(chunks)

    def _entries(self, prefix: str, after: str) -> Iterator[Entry]:
        """The objects below `prefix` past `after`, in the order of the disk."""
        with suppress(FileNotFoundError), self._disk.scandir(self._path(prefix)) as entries:
            for entry in entries:
                key = prefix + entry.name
                below = key + "/"
                # Cheap and first: neither the file nor anything in the directory is past `after`.
                if below <= after and not after.startswith(below):
                    continue
                if not is_key(key):
                    continue
                if entry.is_dir():
                    yield from self._entries(below, after)
                elif key > after:
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    yield Entry(key, status.st_size, status.st_mtime)

    def _directories(self, prefix: str) -> Iterator[str]:
        """The directory of `prefix`, and those below it."""
        path = self._path(prefix)
        with suppress(FileNotFoundError), self._disk.scandir(path) as entries:
            yield path
            for entry in entries:
                if is_key(prefix + entry.name) and entry.is_dir():
                    yield from self._directories(prefix + entry.name + "/")


def _failure(action: str, path: str, error: OSError) -> StoreError:
    hint, retry = _REMEDIES.get(error.errno or 0, ("", True))
    reason = (error.strerror or type(error).__name__).lower()
    return StoreError(f"cannot {action} {path}: {reason}", hint=hint, retry=retry)
