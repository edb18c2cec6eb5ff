"""Objects in the memory of this process: for tests and trials, gone with the process."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from operator import attrgetter
from weakref import WeakValueDictionary

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
)


class MemoryStore:
    """A `Store` in a dictionary. Its URL opens it again while anyone in this process holds it."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._name = uuid.uuid4().hex
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, float]] = {}
        _stores[self._name] = self

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of this name in this process, made if there is none."""
        with _naming:
            store = _stores.get(name)
            if store is None:
                store = cls()
                store._name = name
                _stores[name] = store
            return store

    @property
    def url(self) -> str:
        """The `memory:` URL."""
        return f"memory:{self._name}"

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        """See `Store.put_new`."""
        check_key(key)
        with self._lock:
            if key in self._objects:
                raise ObjectExists(f"object {key} already exists in {self.url}")
            self._objects[key] = (bytes(data), self._clock())

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        check_key(key)
        check_range(start, length)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(f"no object {key} in {self.url}")
        end = None if length is None else start + length
        return found[0][start:end]

    def list(self, prefix: str, *, after: str = "") -> Entries:
        """See `Store.list`."""
        check_listing(prefix, after)
        with self._lock:
            entries = [
                Entry(key, len(data), modified_s)
                for key, (data, modified_s) in self._objects.items()
                if key.startswith(prefix) and key > after
            ]
        entries.sort(key=attrgetter("key"))
        return entries

    def sync(self, prefix: str) -> None:
        """See `Store.sync`: there is nothing below the memory."""
        check_prefix(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`."""
        for key in keys:
            check_key(key)
            with self._lock:
                self._objects.pop(key, None)


_stores: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()
_naming = threading.Lock()
