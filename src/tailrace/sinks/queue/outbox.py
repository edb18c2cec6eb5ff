"""Copies of dead letters that wait for a queue of their own.

    streams/<stream>/dead_letters/copies/<place>.json

A copy is put after its letter and before the stream goes past the message, and is deleted when the
queue has it. So what the stream has gone past as a letter is copied at least once, whatever becomes
of the letter itself, and a queue that is down holds up nothing until too many copies wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from tailrace.errors import SinkError
from tailrace.failpoint import failpoint
from tailrace.sinks.letters.dead_letter import root_of
from tailrace.sinks.letters.letter import Letter, LetterLimits
from tailrace.storage import ObjectExists, ObjectMissing, Store


def count_copies(store: Store, stream: str) -> int:
    """How many wait."""
    return len(store.list(_prefix(stream)))


def drop_copies(store: Store, stream: str) -> None:
    """Nobody sends them any more."""
    store.delete([entry.key for entry in store.list(_prefix(stream))])


class Outbox:
    """The copies of one stream. One thread puts, another one takes."""

    def __init__(self, store: Store, stream: str, limits: LetterLimits | None = None) -> None:
        self._store = store
        self._stream = stream
        self._limits = limits or LetterLimits()
        self._prefix = _prefix(stream)
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        # What a killed run has left may not have reached the disk, and is not put again.
        store.sync(self._prefix)
        for entry in store.list(self._prefix):
            self._note(entry.key, entry.size)

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, letter: Letter) -> None:
        """Keep a copy, durably; raises SinkError if too many wait, or StoreError."""
        key, data = self._key(letter.place), letter.to_json()
        self._require_room(len(data))
        failpoint("copy.before_put")
        with suppress(ObjectExists):
            self._store.put_new(key, data)
        failpoint("copy.after_put")
        self._note(key, len(data))

    def oldest(self, *, letter_count: int, bytes_max: int) -> list[Letter]:
        """The first ones, in order; at least one if there is any."""
        known = set(self._sizes)
        entries = self._store.list(self._prefix)
        self._forget(known.difference(entry.key for entry in entries))
        found: list[Letter] = []
        size = 0
        for entry in entries[:letter_count]:
            size += entry.size
            if found and size > bytes_max:
                break
            # Another pipeline may have sent it as well.
            with suppress(ObjectMissing):
                found.append(Letter.from_json(self._store.get(entry.key), key=entry.key))
        return found

    def remove(self, places: Iterable[str]) -> None:
        """The queue has these."""
        keys = [self._key(place) for place in places]
        failpoint("copy.before_delete")
        self._store.delete(keys)
        self._forget(keys)

    def _key(self, place: str) -> str:
        return f"{self._prefix}{place}.json"

    def _note(self, key: str, size: int) -> None:
        with self._lock:
            self._bytes += size - self._sizes.get(key, 0)
            self._sizes[key] = size

    def _forget(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._bytes -= self._sizes.pop(key, 0)

    def _require_room(self, size: int) -> None:
        count = len(self._sizes)
        if not self._limits.have_room(count, self._bytes + size):
            raise SinkError(
                f"{count} copies wait for the dead letter queue of stream {self._stream}",
                hint="see to that queue; the stream goes on by itself",
                retry=True,
            )


def _prefix(stream: str) -> str:
    return f"{root_of(stream)}copies/"
