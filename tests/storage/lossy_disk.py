"""A disk in memory that keeps exactly what was synced, and no more than POSIX promises.

`LossyDisk` is a `Disk`, so `FileStore(path, disk=LossyDisk(seed))` runs on it. It can lose power or
its process at any operation, fill up, and fail. The seed decides what a power cut takes, so a run
can be had again. What it models:

- bytes not fsynced: lost, cut short, or zeros of the right length;
- a directory entry made or removed since the directory's last fsync: there or not, each by itself;
- a failed fsync of a file: the bytes count as clean from then on, a second fsync succeeds and
  writes nothing (as Linux does);
- a failed fsync of a directory: its entries wait for the next one (they are journaled metadata).

For one thread: a simulation steps through it.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


class Stopped(BaseException):
    """The process is no more; raised at its every operation until `heal`. Nobody handles it."""


@dataclass(eq=False)
class _File:
    modified_s: float
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    dirty: bool = False


@dataclass(eq=False)
class _Directory:
    entries: dict[str, _File | _Directory] = field(default_factory=dict)
    synced: dict[str, _File | _Directory] = field(default_factory=dict)


_Node = _File | _Directory


@dataclass(frozen=True)
class Status:
    """Size and time of a file."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True)
class DirectoryEntry:
    """One name in a directory."""

    name: str
    _node: _Node

    def is_dir(self) -> bool:
        """Whether it names a directory."""
        return isinstance(self._node, _Directory)

    def stat(self) -> Status:
        """Size and time."""
        return _status(self._node)


class LossyDisk:
    """A `Disk` that can be made to fail. Time on it is the number of operations so far."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._root = _Directory()
        self._handles: dict[int, _Node] = {}
        self._handle_count = 0
        self._stop_at: int | None = None
        self._stop_loses = False
        self._stopped = False
        self._free_bytes: int | None = None
        self._write_error: int | None = None
        self._fsync_error: int | None = None
        self._fsync_good_count = 0
        self.operation_count = 0

    # What a test does to it.

    def power_cut(self, *, after: int = 0) -> None:
        """Lose power: now, or instead of the operation that comes `after` that many others."""
        self._stop(after, loses=True)

    def kill(self, *, after: int = 0) -> None:
        """Kill the process, now or later; the disk forgets nothing."""
        self._stop(after, loses=False)

    def fill(self, *, free_bytes: int = 0) -> None:
        """Leave only this much space: writes fall short, then fail with ENOSPC."""
        self._free_bytes = free_bytes

    def fail_write(self, error: int = errno.EIO) -> None:
        """Make every write fail."""
        self._write_error = error

    def fail_fsync(self, error: int = errno.EIO, *, after: int = 0) -> None:
        """Make every fsync fail, of files and of directories, once `after` more have worked."""
        self._fsync_error = error
        self._fsync_good_count = after

    def heal(self) -> None:
        """Power on, space free, faults gone; what was lost stays lost."""
        self._stop_at = self._free_bytes = self._write_error = self._fsync_error = None
        self._stopped = False

    def is_directory(self, handle: int) -> bool:
        """Whether the handle is a directory's."""
        return isinstance(self._node(handle), _Directory)

    def holds_files(self, handle: int) -> bool:
        """Whether the handle is that of a directory with files in it."""
        node = self._node(handle)
        return isinstance(node, _Directory) and any(
            isinstance(entry, _File) for entry in node.entries.values()
        )

    # What a `Disk` does.

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        """Open a file or directory, or make a file."""
        self._operate()
        if flags & os.O_CREAT:
            node: _Node = _File(modified_s=self.operation_count)
            self._add(path, node)
        else:
            node = self._find(path)
        if flags & os.O_DIRECTORY and not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        self._handle_count += 1
        self._handles[self._handle_count] = node
        return self._handle_count

    def write(self, handle: int, data: bytes | memoryview, /) -> int:
        """Append; may take less than it is given."""
        self._operate()
        if self._write_error is not None:
            raise _error(self._write_error)
        file = self._file(handle)
        taken = bytes(data)[: self._free_bytes]
        if data and not taken:
            raise _error(errno.ENOSPC)
        if self._free_bytes is not None:
            self._free_bytes -= len(taken)
        file.data += taken
        file.dirty = True
        return len(taken)

    def pread(self, handle: int, length: int, offset: int, /) -> bytes:
        """Read."""
        self._operate()
        return bytes(self._file(handle).data[offset : offset + length])

    def fstat(self, handle: int, /) -> Status:
        """Size and time."""
        self._operate()
        return _status(self._node(handle))

    def fsync(self, handle: int, /) -> None:
        """Keep the bytes of a file, or the names in a directory, for good."""
        self._operate()
        node = self._node(handle)
        if self._fsync_error is not None:
            if self._fsync_good_count == 0:
                if isinstance(node, _File):
                    node.dirty = False
                raise _error(self._fsync_error)
            self._fsync_good_count -= 1
        if isinstance(node, _Directory):
            node.synced = dict(node.entries)
        elif node.dirty:
            node.synced = bytes(node.data)
            node.dirty = False

    def posix_fadvise(self, handle: int, offset: int, length: int, advice: int, /) -> None:
        """Only advice: what was not synced stays."""
        self._operate()

    def close(self, handle: int, /) -> None:
        """Close; syncs nothing."""
        self._operate()
        self._node(handle)
        del self._handles[handle]

    def link(self, source: str, target: str, /) -> None:
        """Give a file a second name."""
        self._operate()
        self._add(target, self._find(source))

    def unlink(self, path: str, /) -> None:
        """Take a name away."""
        self._operate()
        if isinstance(self._find(path), _Directory):
            raise _error(errno.EISDIR, path)
        directory, name = self._parent(path)
        del directory.entries[name]

    def mkdir(self, path: str, /) -> None:
        """Make a directory."""
        self._operate()
        self._add(path, _Directory())

    def scandir(
        self, path: str, /
    ) -> AbstractContextManager[Iterator[DirectoryEntry], bool | None]:
        """The names in a directory, in no order."""
        self._operate()
        directory = self._find(path)
        if not isinstance(directory, _Directory):
            raise _error(errno.ENOTDIR, path)
        entries = [DirectoryEntry(name, node) for name, node in directory.entries.items()]
        self._random.shuffle(entries)
        return nullcontext(iter(entries))

    def _operate(self) -> None:
        if not self._stopped and self.operation_count == self._stop_at:
            self._end(loses=self._stop_loses)
        if self._stopped:
            raise Stopped
        self.operation_count += 1

    def _stop(self, after: int, *, loses: bool) -> None:
        if after == 0:
            self._end(loses=loses)
        else:
            self._stop_at = self.operation_count + after
            self._stop_loses = loses

    def _end(self, *, loses: bool) -> None:
        self._stopped = True
        self._stop_at = None
        self._handles.clear()
        if loses:
            self._lose(self._root, seen=set())

    def _lose(self, node: _Node, seen: set[int]) -> None:
        """Leave of `node`, and of all below it, what happened to reach the platter."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, _File):
            if node.data != node.synced:
                node.data = bytearray(self._torn(node))
            node.synced, node.dirty = bytes(node.data), False
            return
        survived: dict[str, _Node] = {}
        for name in node.synced | node.entries:
            was, now = node.synced.get(name), node.entries.get(name)
            kept = was if was is now else self._random.choice((was, now))
            if kept is not None:
                survived[name] = kept
                self._lose(kept, seen)
        node.entries, node.synced = survived, dict(survived)

    def _torn(self, file: _File) -> bytes:
        if not file.dirty:
            return file.synced  # The kernel gave these bytes up at a failed fsync.
        cut = self._random.randrange(len(file.data) + 1)
        head = bytes(file.data[:cut])
        return self._random.choice((file.synced, head, head.ljust(len(file.data), b"\0")))

    def _parent(self, path: str) -> tuple[_Directory, str]:
        above, name = os.path.split(path)
        directory = self._root if above == "/" else self._find(above)
        if not isinstance(directory, _Directory):
            raise _error(errno.ENOTDIR, path)
        return directory, name

    def _find(self, path: str) -> _Node:
        if path == "/":
            return self._root
        directory, name = self._parent(path)
        if name not in directory.entries:
            raise _error(errno.ENOENT, path)
        return directory.entries[name]

    def _add(self, path: str, node: _Node) -> None:
        directory, name = self._parent(path)
        if name in directory.entries:
            raise _error(errno.EEXIST, path)
        directory.entries[name] = node

    def _node(self, handle: int) -> _Node:
        if handle not in self._handles:
            raise _error(errno.EBADF)
        return self._handles[handle]

    def _file(self, handle: int) -> _File:
        node = self._node(handle)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR)
        return node


def _status(node: _Node) -> Status:
    if isinstance(node, _Directory):
        return Status(0, 0.0)
    return Status(len(node.data), node.modified_s)


def _error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)
