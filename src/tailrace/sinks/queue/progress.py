"""How far a batch is settled at its queue, durably, so that a crash repeats at most one window.

    streams/<stream>/sent/<sequence>-<count>     the first <count> messages of the batch are settled
    streams/<stream>/left/<epoch>-<sequence>     the run of this epoch sends no more of the batch

A batch has the same messages in the same order whenever it comes, so a count says which.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tailrace.failpoint import failpoint
from tailrace.log import layout
from tailrace.log.epochs import Fence
from tailrace.storage import Entry, ObjectExists, Store

_KEEP: Final = 4
"""A message beyond the newest of these was not yet in the window at the oldest: each moves the
window by half of its count or by half of its bytes, so three of them move it by its whole; or it
is the end of a part of a base, and nothing behind that was sent before.
"""


class Progress:
    """The progress of one stream's newest batch."""

    def __init__(self, store: Store, stream: str, fence: Fence | None = None) -> None:
        """`fence` is needed by who saves."""
        self._store = store
        self._fence = fence or Fence(store, stream, 0)
        self._prefix = f"{layout.STREAMS}{stream}/sent/"
        self._left = f"{layout.STREAMS}{stream}/left/"

    def count(self, sequence: int) -> int:
        """How many messages of the batch are settled."""
        self._store.sync(self._prefix)
        return max((_numbers(entry.key)[1] for entry in self._entries(sequence)), default=0)

    def since_s(self, sequence: int) -> float | None:
        """When the first message that is not known to be settled can have been sent, by the
        store's clock; None if none was.
        """
        entries = self._entries(sequence)
        return min((entry.modified_s for entry in entries), default=None)

    def until_s(self, sequence: int) -> float | None:
        """When the last message can have been sent; None if that is not known, because the run
        before this one was killed.
        """
        before = (self._fence.epoch - 1, sequence)
        entries = self._store.list(self._left)
        return next((e.modified_s for e in entries if _numbers(e.key) == before), None)

    def leave(self, sequence: int) -> None:
        """This run sends no more of the batch, whether or not it is settled."""
        with suppress(ObjectExists):
            self._store.put_new(f"{self._left}{self._fence.epoch:016d}-{sequence:016d}", b"")

    def resume(self) -> None:
        """From now on more is sent: what any run has left says nothing any more."""
        if left := [entry.key for entry in self._store.list(self._left)]:
            self._store.delete(left)

    def save(self, sequence: int, count: int) -> None:
        """So many are settled; what is older is forgotten. Raises LogFenced."""
        self._fence.check()
        failpoint("progress.before_save")
        with suppress(ObjectExists):
            self._store.put_new(f"{self._prefix}{sequence:016d}-{count:016d}", b"")
        failpoint("progress.after_save")
        # Whoever has taken over before this put goes on from an older count: sending more behind
        # this one would be a second window.
        self._fence.check()
        old = [entry.key for entry in self._store.list(self._prefix)][:-_KEEP]
        self._store.delete(old)

    def _entries(self, sequence: int) -> list[Entry]:
        entries = self._store.list(self._prefix)
        return [entry for entry in entries if _numbers(entry.key)[0] == sequence]


def _numbers(key: str) -> tuple[int, int]:
    sequence, _, count = key.rsplit("/", 1)[-1].partition("-")
    return int(sequence), int(count)
