"""Who delivers a stream: its epochs, each of them one pipeline's.

    streams/<stream>/epochs/<n>.json     the n-th pipeline that has taken the stream over

An epoch is put only if absent, behind the newest one, and the newest one counts. Whoever holds an
older epoch is a zombie: it may not know yet, so it looks before each commit that says something
about the stream as a whole, and after each that a successor could take for its own. What is put
before a look that finds nothing was put before the successor began, and the successor sees it. No
clock is asked, and no lease can run out in the middle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogFenced
from tailrace.log import layout
from tailrace.storage import ObjectExists, Store

_KEEP: Final = 2


@dataclass(frozen=True, slots=True)
class Fence:
    """The epoch under which a stream is delivered; 0 where nobody has ever taken one: then nobody
    is fenced by it.
    """

    store: Store
    stream: str
    epoch: int

    def check(self) -> None:
        """Raise LogFenced if somebody else has taken the stream over."""
        own = _key(self.stream, self.epoch)
        if self.epoch and self.store.list(_prefix(self.stream), after=own):
            raise LogFenced(
                f"another pipeline has taken stream {self.stream} over",
                hint="nothing is wrong: this one stands by",
            )


def take_epoch(store: Store, stream: str, *, node: str) -> Fence:
    """Take a stream over from whoever delivers it; it is fenced from now on."""
    while True:
        entries = store.list(_prefix(stream))
        epoch = _number(entries[-1].key) + 1 if entries else 1
        try:
            store.put_new(_key(stream, epoch), json.dumps({"node": node}).encode())
        except ObjectExists:
            continue
        if store.list(_prefix(stream), after=_key(stream, epoch)):
            # Overtaken already; or the number was free only because its first owner's is deleted.
            continue
        store.delete(entry.key for entry in entries[: 1 - _KEEP])
        return Fence(store, stream, epoch)


def newest_fence(store: Store, stream: str) -> Fence:
    """The epoch that counts now. Replays of a stream are delivered by whoever delivers it."""
    owner = stream.partition(".")[0]
    entries = store.list(_prefix(owner))
    return Fence(store, owner, _number(entries[-1].key) if entries else 0)


def _prefix(stream: str) -> str:
    return f"{layout.STREAMS}{stream}/epochs/"


def _key(stream: str, epoch: int) -> str:
    return f"{_prefix(stream)}{epoch:016d}.json"


def _number(key: str) -> int:
    return int(key.rsplit("/", 1)[-1].partition(".")[0])
