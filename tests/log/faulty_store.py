"""Stores that fail or die at a chosen moment, over a sound one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailrace.errors import StoreError
from tailrace.storage import Data, Store
from tailrace.storage.store import Entries


class Killed(BaseException):
    """The process ended here, as by kill -9."""


class WatchedStore:
    """Calls `before` and `after` around each effect on a store, with its name and key."""

    def __init__(
        self,
        store: Store,
        *,
        before: Callable[[str, str], None] = lambda what, key: None,
        after: Callable[[str, str], None] = lambda what, key: None,
    ) -> None:
        self._store = store
        self._before = before
        self._after = after

    @property
    def url(self) -> str:
        return self._store.url

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        self._before("put", key)
        self._store.put_new(key, data, is_bulk=is_bulk)
        self._after("put", key)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self._before("get", key)
        return self._store.get(key, start=start, length=length)

    def list(self, prefix: str, *, after: str = "") -> Entries:
        self._before("list", prefix)
        found = self._store.list(prefix, after=after)
        self._after("list", prefix)
        return found

    def sync(self, prefix: str) -> None:
        self._store.sync(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._before("delete", key)
            self._store.delete([key])
            self._after("delete", key)


def dying(store: Store, effect: int) -> WatchedStore:
    """A store whose process is killed just before its n-th put or delete, counted from 0."""
    left = effect

    def before(what: str, key: str) -> None:
        nonlocal left
        if what in ("put", "delete"):
            if left == 0:
                raise Killed
            left -= 1

    return WatchedStore(store, before=before)


def forgetful(store: Store, times: int = 1) -> WatchedStore:
    """A store that takes an object and then says that it could not, so many times."""
    left = times

    def after(what: str, key: str) -> None:
        nonlocal left
        if what == "put" and left:
            left -= 1
            raise StoreError("the answer was lost on the way")

    return WatchedStore(store, after=after)
