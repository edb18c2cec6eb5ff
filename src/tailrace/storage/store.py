"""The seam between the log and where its bytes live.

A store holds immutable objects under keys. The one hard promise is `put_new`: of any number of
writers that put the same key exactly one wins, and when the call returns the object survives a
power cut. Everything the log does about fencing and acknowledgement rests on that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tailrace.errors import StoreError

KEY_LENGTH_MAX: Final = 255

# A part does not begin with a dot: this rules out `.` and `..`, and keeps apart what file systems
# and desktops leave in directories (.nfs…, .DS_Store).
_PART: Final = r"[A-Za-z0-9_-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*")


class ObjectExists(StoreError):
    """The key is taken. What is there is durable, and may be our own from an earlier try."""

    retry = False


class ObjectMissing(StoreError):
    """No object has this key."""

    retry = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing tells about one object."""

    key: str
    size: int
    modified_s: float
    """When the store took it, by its own clock, since 1970: for retention, never for order."""


def is_outage(error: BaseException) -> bool:
    """Whether the store took or gave nothing at all, as while access is denied: that says nothing
    about an object, and may end at any moment. For whoever can wait until it does, also if a
    person must see to it (`retry` is false then).
    """
    return type(error) is StoreError


Data: TypeAlias = bytes | memoryview
Entries: TypeAlias = list[Entry]


class Store(Protocol):
    """Immutable objects under keys. Thread-safe; any number of processes may hold the same store.

    Keys are relative paths of `[A-Za-z0-9._=-]` parts joined by `/`, no part beginning with a dot
    or `=`, 255 characters at most; a prefix is empty or a key with a `/` at its end. Anything else
    is a bug in the caller: ValueError. No key may be the directory of another (`a` and `a/b`).

    Failures are StoreError. A store tries again only inside the bounded time of one call; beyond
    that the caller does, if `retry` says so. A call that failed may still have had its effect.
    """

    @property
    def url(self) -> str:
        """Opens this store again with `open_store`, from any process unless it is in memory."""
        ...

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        """Put an object that is not there yet: whole or not at all, durable when this returns.

        Raises ObjectExists if the key is taken; what is there then is durable and unchanged. After
        a time-out or any other failure the object may be there, so a second try can meet our own
        first one: whoever needs to know reads the object and looks who wrote it (and tries again if
        it is gone by then). Others may see the object a moment before this returns.

        `is_bulk` is said of one among many that nobody waits for: the store need not keep it at
        hand.
        """
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The object's bytes from `start`, at most `length`; fewer, or none, past its end.

        Raises ObjectMissing, also when the object is deleted at this moment; never returns a torn
        object.
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> Entries:
        """Every object below `prefix` with a key greater than `after`, sorted by key, if any.

        `after` is a key that need not exist. A listing may run while others write and is not a
        snapshot: what was there before the call and is not deleted during it is listed, and of two
        objects put during it the later one may show without the earlier.
        """
        ...

    def sync(self, prefix: str) -> None:
        """Make durable what a listing of `prefix` shows.

        A writer that was killed inside `put_new` may have left an object that is whole and visible,
        but that a power cut would still take away. Whoever builds on another writer's objects calls
        this once before.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, in no order; a missing one is no error.

        Not durable by itself: after a power cut a deleted object may be back, and is then deleted
        again.
        """
        ...


def is_key(text: str) -> bool:
    """Whether `text` can name an object."""
    return len(text) <= KEY_LENGTH_MAX and _KEY.fullmatch(text) is not None


def check_key(key: str) -> None:
    """Raise ValueError unless `key` can name an object."""
    if not is_key(key):
        raise ValueError(f"not a key: {key!r}")


def check_prefix(prefix: str) -> None:
    """Raise ValueError unless `prefix` is empty or a key with a `/` at its end."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise ValueError(f"not a prefix: {prefix!r}")


def check_listing(prefix: str, after: str) -> None:
    """Raise ValueError unless a listing can begin there."""
    check_prefix(prefix)
    if after:
        check_key(after)


def check_range(start: int, length: int | None) -> None:
    """Raise ValueError unless the range counts forward from the start of an object."""
    if start < 0 or (length is not None and length < 0):
        raise ValueError(f"not a range: start {start}, length {length}")
