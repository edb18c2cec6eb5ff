"""What `FileStore` asks of a disk: a handful of functions of the `os` module, by their own names.

The real disk is the `os` module itself. Tests pass another one, which fills up, fails, or loses
what was not synced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Status(Protocol):
    """The part of `os.stat_result` that is used."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_mtime(self) -> float: ...


class DirectoryEntry(Protocol):
    """The part of `os.DirEntry` that is used."""

    @property
    def name(self) -> str: ...

    def is_dir(self) -> bool: ...

    def stat(self) -> Status: ...


class Disk(Protocol):
    """Each method means what the function of that name in `os` means, errors included."""

    def open(self, path: str, flags: int, mode: int = ..., /) -> int: ...

    def write(self, handle: int, data: bytes | memoryview, /) -> int: ...

    def pread(self, handle: int, length: int, offset: int, /) -> bytes: ...

    def fstat(self, handle: int, /) -> Status: ...

    def fsync(self, handle: int, /) -> None: ...

    def posix_fadvise(self, handle: int, offset: int, length: int, advice: int, /) -> None: ...

    def close(self, handle: int, /) -> None: ...

    def link(self, source: str, target: str, /) -> None: ...

    def unlink(self, path: str, /) -> None: ...

    def mkdir(self, path: str, /) -> None: ...

    def scandir(
        self, path: str, /
    ) -> AbstractContextManager[Iterator[DirectoryEntry], bool | None]: ...
