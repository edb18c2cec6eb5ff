"""Positions that only rise, each in an object named by it: progress, frontiers, readers.

The highest name counts, so nobody can move a mark back. A new one is put before an old one goes,
and its predecessor stays: a listing that runs meanwhile shows one of the two, never nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tailrace.log import layout
from tailrace.log.layout import FrontierKind
from tailrace.model import Lsn
from tailrace.storage import ObjectExists, Store


@dataclass(frozen=True, slots=True)
class Frontiers:
    """No segment may be put under a name below either of them.

    Below `merged` are the names of segments that were merged away, beside those of segments too
    large to merge. Below `retained` there is nothing any more.
    """

    merged: Lsn
    retained: Lsn

    @property
    def highest(self) -> Lsn:
        """Where the living names begin."""
        return max(self.merged, self.retained)


def raise_mark(store: Store, key: str, data: bytes = b"") -> None:
    """Put a mark, durable on return; a name that is taken has been reached before."""
    with suppress(ObjectExists):
        store.put_new(key, data)
    prefix = key.rsplit("/", 1)[0] + "/"
    lower = [entry.key for entry in store.list(prefix) if entry.key < key]
    store.delete(lower[:-1])


def read_frontiers(store: Store) -> Frontiers:
    """Both frontiers, 0 where there is none."""
    highest = dict.fromkeys(FrontierKind, Lsn(0))
    for entry in store.list(layout.FRONTIER):
        kind = FrontierKind(entry.key.split("/")[1])
        highest[kind] = max(highest[kind], layout.position_of(entry.key))
    return Frontiers(highest[FrontierKind.MERGED], highest[FrontierKind.RETAINED])


def move_frontier(store: Store, kind: FrontierKind, position: Lsn) -> None:
    """Declare the names below `position` dead; it never moves back."""
    raise_mark(store, layout.frontier_key(kind, position))
