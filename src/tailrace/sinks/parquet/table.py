"""One table's change files, and the index that says which of them count.

Invariant: a file counts once an entry of the index names it, and an entry is put, if absent, under
the number behind the last one. So a batch appears whole; of two writers at once one gets the number
and the other looks again; and a writer that comes late finds a later sequence recorded, because it
cannot put an entry without having seen the one before.

A file's name ends in a digest of its bytes. A batch that is written again finds its files there;
one that would give other bytes gets names of its own, and never half of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tailrace.errors import SinkError, StoreError
from tailrace.sinks.outage import outage
from tailrace.sinks.parquet.entry import PREFIX, ChangeFile, Entry, entry_key
from tailrace.storage import ObjectExists, Store, open_store
from tailrace.storage.file import CURED_BY_RESTART
from tailrace.storage.store import Data

_TRIES_MAX: Final = 10


class ChangeTable:
    """A table below its own directory or URL. Every method may raise SinkError."""

    def __init__(self, uri: str) -> None:
        self._url = uri if "://" in uri else Path(uri).absolute().as_uri()
        self._store: Store = open_store(self._url)
        self._last: Entry | None = None

    def last(self) -> Entry | None:
        """The newest entry; None if there is no table."""
        with _as_sink_errors():
            keys = self._keys_since_last()
            if not keys:
                # Maybe it was taken away, with directories that the store believes to be there.
                self._store, self._last = open_store(self._url), None
                keys = [entry.key for entry in self._store.list(PREFIX)]
            if not keys:
                return None
            if self._last is None:
                # What another writer has put may not be durable yet.
                self._store.sync(PREFIX)
            if self._last is None or keys[-1] != self._last.key:
                self._last = self._read(keys[-1])
            return self._last

    def make(self, entry: Entry) -> Entry:
        """The newest entry of a table that is made, with this first one, if there is none."""
        return self.last() or self.commit(lambda last: None if last is not None else entry)

    def commit(self, following: Callable[[Entry | None], Entry | None]) -> Entry:
        """Put the entry that is to follow the last one; again, if another writer was faster.

        `following` gives None if there is nothing to do any more. The newest entry is returned.
        """
        for _ in range(_TRIES_MAX):
            last = self.last()
            entry = following(last)
            if entry is None:
                assert last is not None, "nothing to do without a table"
                return last
            assert entry.number == (0 if last is None else last.number + 1), "a gap in the index"
            with _as_sink_errors():
                try:
                    self._store.put_new(entry.key, entry.to_json())
                except ObjectExists:
                    continue
            self._last = entry
            return entry
        raise SinkError(f"other writers are always faster at {self._url}", retry=True)

    def add_file(self, stem: str, data: Data, rows: int) -> ChangeFile:
        """Put a file that no entry names yet; one with the same bytes may be there."""
        digest = blake2b(data, digest_size=8).hexdigest()
        file = ChangeFile(f"{stem}-{digest}.parquet", rows, len(data))
        with _as_sink_errors(), suppress(ObjectExists):
            self._store.put_new(file.path, data)
        return file

    def _keys_since_last(self) -> list[str]:
        """The entries from the last known one on; none if that is gone."""
        if self._last is None:
            return []
        before = entry_key(self._last.number - 1) if self._last.number else ""
        found = [entry.key for entry in self._store.list(PREFIX, after=before)]
        return found if found and found[0] == self._last.key else []

    def _read(self, key: str) -> Entry:
        try:
            return Entry.from_json(self._store.get(key))
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"{key} in {self._url} is no entry of an index",
                hint="put it back as it was, or deliver to another path",
            ) from error


@contextmanager
def _as_sink_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        is_cured_there = not error.retry and error.hint not in CURED_BY_RESTART
        raise outage(str(error), hint=error.hint, is_cured_there=is_cured_there) from error
